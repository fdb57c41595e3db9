"""`celery rlock explain`: what would happen to a call, and which options decide it."""

from __future__ import annotations

import pytest

from celery_rlock.options.plan import plan_of
from tests.cli.commands_app import make_app
from tests.cli.run_commands import documents, run


@pytest.fixture
def app(server):
    return make_app(server.url, rlock_backoff=2)


def explain(app, *words):
    (document,) = documents(run(app, "explain", "--json", "--timeout", "0", *words))
    return document


def test_a_call_with_a_free_key_runs_at_once(app):
    result = run(app, "explain", "proj.charge", "7")
    assert result.exit_code == 0
    assert "proj.charge: it runs at once" in result.stdout
    assert "key account:7  free" in result.stdout


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["charge", "7"], ["account:7"]),
        (["charge", "account_id=7", "amount=3"], ["account:7"]),
        (["charge", "seven"], ["account:seven"]),
        (["charge", '"7"'], ["account:7"]),
        (["charge", "--args", '["a=b"]'], ["account:a=b"]),
        (["charge", "--kwargs", '{"account_id": 9}'], ["account:9"]),
        (["charge", "--", "-7"], ["account:-7"]),
        (["transfer", "2", "1"], ["account:1", "account:2"]),
    ],
)
def test_the_arguments_give_the_keys_that_the_task_would_take(app, words, keys):
    assert [key["key"] for key in explain(app, *words)["keys"]] == keys


def test_without_lock_key_it_shows_the_default_key(app, locks):
    (key,) = plan_of(app.tasks["proj.by_default"]).keys_of(([1, "x"],), {})
    locks.hold(key, task="proj.by_default")
    shown = explain(app, "by_default", '[1, "x"]')
    assert shown["keys"][0]["held"]["task"] == "proj.by_default"


@pytest.mark.parametrize(
    ("task", "action", "text", "because"),
    [
        ("charge", "retry", "behind 2 waiters", "lock_backoff"),
        ("counting", "retry", "after 4 attempts it raises LockBusy", "lock_max_attempts"),
        ("skipping", "skip", "REVOKED", "lock_busy"),
        ("failing", "fail", "waits in place for up to 3.0s, and then fails with LockBusy", "lock_wait"),
        ("rejecting", "reject", "dead-letter", "lock_busy"),
        ("replacing", "retry", "waits under its own task id, behind 2 waiters", "lock_busy"),
        ("asking", "ask", "tests.cli.commands_app.always_skip()", "lock_busy"),
        ("started", "run", "holds no lock while it runs", "lock_until"),
    ],
)
def test_with_a_busy_key_the_options_decide(app, locks, task, action, text, because):
    key = "account:x" if task == "charge" else "x"
    locks.hold(key, task="proj.other")
    locks.add_waiters(key, "id-2", "id-3")
    shown = explain(app, task, "x")
    assert shown["action"] == action
    assert text in shown["outlook"]
    assert because in {reason["option"] for reason in shown["why"]}


def test_a_run_of_the_same_task_would_be_replaced(app, locks):
    locks.hold("x", task="proj.replacing")
    shown = explain(app, "replacing", "x")
    assert shown["action"] == "replace"
    assert "ends proj.replacing[id-1] on worker-1@pod" in shown["outlook"]


def test_each_option_shows_where_its_value_comes_from(app, locks):
    locks.hold("account:7")
    sources = {reason["option"]: reason["source"] for reason in explain(app, "charge", "7")["why"]}
    assert sources["lock_key"] == "task"
    assert sources["lock_backoff"] == "setting rlock_backoff"
    assert sources["lock_busy"] == "default"


def test_a_busy_key_ends_with_exit_code_1(app, locks):
    locks.hold("account:7")
    assert run(app, "explain", "charge", "7", "--timeout", "0").exit_code == 1


@pytest.mark.parametrize(
    ("task", "holder", "action", "text"),
    [
        ("unique", "proj.unique", "duplicate", "returns the result of proj.unique[id-1]"),
        ("unique_or_error", "proj.unique_or_error", "duplicate", "DuplicateTask"),
        ("unique", "proj.other", "retry", "under its own task id"),
    ],
)
def test_a_duplicate_call_is_not_published(app, locks, task, holder, action, text):
    locks.hold("x", worker="12@host/n", delivery="queued", task=holder)
    shown = explain(app, task, "x")
    assert shown["action"] == action
    assert text in shown["outlook"]


def test_one_busy_key_of_two_delays_the_call(app, locks):
    locks.hold("account:2")
    shown = explain(app, "transfer", "1", "2")
    assert shown["action"] == "retry"
    assert [key["held"] is not None for key in shown["keys"]] == [False, True]


def test_a_task_without_a_lock_runs_at_once(app):
    result = run(app, "explain", "plain")
    assert result.exit_code == 0
    assert "takes no lock" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["proj.chrage", "7"], "did you mean 'proj.charge'?"),
        (["chargge", "7"], "did you mean 'proj.charge'?"),
        (["nothing like it"], "there are proj.asking"),
        (["charge"], "missing a required argument: 'account_id'"),
        (["charge", "1", "2", "3"], "too many positional arguments"),
        (["charge", "1", "bogus=3"], "unexpected keyword argument 'bogus'"),
        (["charge", "--args", "{"], "not JSON"),
        (["charge", "--kwargs", "[]"], "must be an object"),
    ],
)
def test_bad_input_is_reported_without_a_traceback(app, words, said):
    result = run(app, "explain", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_limit_that_cannot_be_computed_is_reported_without_a_traceback(app):
    result = run(app, "explain", "limited_by_nothing", "x")
    assert result.exit_code == 3
    assert "the limit of proj.limited_by_nothing cannot be computed: KeyError('x')" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_disabled_locking_is_reported(server):
    result = run(make_app(server.url, rlock_enabled=False), "explain", "charge", "7")
    assert result.exit_code == 3
    assert "rlock_enabled is False" in result.stderr
