from __future__ import annotations

import pickle

import pytest
from celery import Celery

from celery_rlock import errors

EXAMPLES = [
    errors.RLockError("text"),
    errors.ConfigurationError("text"),
    errors.LockBusy("account:7", "w/1:a", 2.5),
    errors.LockLost("account:7", "w/1:a", "its lease ended"),
    errors.LockNotHeld("account:7", "w/1:a"),
    errors.DuplicateTask("account:7", "a", "w/1:a"),
    errors.LockUnavailable("account:7", "ConnectionError: refused"),
    errors.TaskReplaced("account:7", "b", "w/1:a"),
]
OF_A_TASK = [
    errors.LockBusy("account:7", "w/1:a", 2.5, "proj.sync", "resting"),
    errors.LockLost("account:7", "w/1:a", "its lease ended", "proj.sync"),
    errors.DuplicateTask("account:7", "a", "w/1:a", "proj.sync"),
    errors.LockUnavailable("account:7", "ConnectionError: refused", "proj.sync"),
    errors.TaskReplaced("account:7", "b", "w/1:a", "proj.sync"),
]


@pytest.mark.parametrize("error", [*EXAMPLES, *OF_A_TASK], ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again), str(again)) == (
        type(error),
        error.args,
        vars(error),
        str(error),
    )


@pytest.mark.parametrize("error", [*EXAMPLES, *OF_A_TASK], ids=lambda error: type(error).__name__)
def test_an_error_survives_the_json_result_backend(error):
    backend = Celery("unit", backend="cache+memory://", set_as_current=False).backend
    backend.store_result("id", error, "FAILURE")
    again = backend.get_task_meta("id")["result"]
    assert (type(again), vars(again), str(again)) == (type(error), vars(error), str(error))


def test_every_error_is_tried():
    public = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert {type(error) for error in EXAMPLES} == public


@pytest.mark.parametrize("error", EXAMPLES[2:], ids=lambda error: type(error).__name__)
def test_an_error_says_key_owner_and_what_to_do(error):
    text = str(error)
    assert "'account:7'" in text
    assert error.args[1] in text
    assert len(text) > len("account:7") + len(error.args[1]) + 40


@pytest.mark.parametrize("error", OF_A_TASK, ids=lambda error: type(error).__name__)
def test_an_error_names_its_task(error):
    assert str(error).startswith("task proj.sync")


def test_a_busy_lock_is_held_and_may_be_renewed():
    error = errors.LockBusy("account:7", "w/1:a", 2.5, "proj.sync")
    assert "is held by w/1:a (its lease ends in 2.5 s unless renewed)" in error.summary
    assert error.summary in str(error)


@pytest.mark.parametrize(("state", "said"), [("resting", "rests"), ("queued", "has not started")])
def test_a_busy_lock_that_no_run_renews_does_not_say_so(state, said):
    text = str(errors.LockBusy("account:7", "w/rest:a", 2.5, "proj.sync", state))
    assert said in text
    assert "2.5 s" in text
    assert "renewed" not in text
    assert "is held" not in text


def test_releasing_what_is_not_held_is_a_runtime_error_as_with_threading():
    assert issubclass(errors.LockNotHeld, RuntimeError)
