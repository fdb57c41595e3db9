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
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, vars(again), str(again)) == (
        type(error),
        error.args,
        vars(error),
        str(error),
    )


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_json_result_backend(error):
    backend = Celery("unit", backend="cache+memory://", set_as_current=False).backend
    backend.store_result("id", error, "FAILURE")
    again = backend.get_task_meta("id")["result"]
    assert (type(again), vars(again), str(again)) == (type(error), vars(error), str(error))


def test_every_error_is_tried():
    public = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {type(error) for error in EXAMPLES} == public


@pytest.mark.parametrize("error", EXAMPLES[2:], ids=lambda error: type(error).__name__)
def test_an_error_says_key_owner_and_what_to_do(error):
    text = str(error)
    assert "'account:7'" in text
    assert error.args[1] in text
    assert len(text) > len("account:7") + len(error.args[1]) + 40


def test_releasing_what_is_not_held_is_a_runtime_error_as_with_threading():
    assert issubclass(errors.LockNotHeld, RuntimeError)
