"""A task's plan, and what one call changes of it."""

from __future__ import annotations

import enum
import json

import pydantic
import pytest
from celery import Celery

from celery_rlock import ConfigurationError, LockedTask
from celery_rlock.options.headers import NO_HEADERS, OPTIONS, read_headers
from celery_rlock.options.plan import Plan, allowed_call_options


class Order(pydantic.BaseModel):
    number: int


@pytest.fixture
def plan():
    app = Celery("unit", set_as_current=False)

    @app.task(base=LockedTask, shared=False, lock_key="account:{account_id}", lock_ttl=20)
    def sync(account_id, day=None):
        return account_id

    return type(app.tasks[sync.name])._lock_plan


def test_a_call_without_options_has_the_tasks_plan(plan):
    options = {"queue": "q", "headers": {"mine": 1}}
    assert plan.for_call(options) == (plan, options)
    assert plan.for_message(NO_HEADERS) is plan


def test_what_a_call_chooses_goes_before_and_the_rest_stays(plan):
    chosen, _ = plan.for_call({"lock_busy": "skip", "lock_from": "publish"})
    assert (chosen.options.busy, chosen.options.from_, chosen.options.ttl) == ("skip", "publish", 20)
    assert plan.options.busy == "retry"


def test_ours_go_into_the_headers_and_out_of_celerys_options(plan):
    given = {"queue": "q", "headers": {"mine": 1}, "lock_ttl": 5}
    _, options = plan.for_call(given)
    assert options == {"queue": "q", "headers": {"mine": 1, OPTIONS: {"ttl": 5}}}
    assert given == {"queue": "q", "headers": {"mine": 1}, "lock_ttl": 5}


def test_a_message_brings_the_plan_of_its_call(plan):
    """Also when JSON has made a list of a tuple."""
    _, options = plan.for_call({"lock_key": ("b:{day}", "a:{account_id}"), "lock_from": "publish"})
    headers = json.loads(json.dumps(options["headers"]))
    sent = plan.for_message(read_headers(headers, "sync"))
    assert sent.keys_of((7,), {"day": 1}) == ("a:7", "b:1")
    assert sent.options.from_ == "publish"


def test_what_is_published_again_keeps_its_options_and_may_choose_more(plan):
    """As a retry does, which gives the headers of its request."""
    _, first = plan.for_call({"lock_ttl": 5, "lock_busy": "skip"})
    chosen, second = plan.for_call({"headers": first["headers"], "lock_busy": "fail"})
    assert (chosen.options.ttl, chosen.options.busy) == (5, "fail")
    assert second["headers"][OPTIONS] == {"ttl": 5, "busy": "fail"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lock_tll": 5}, "task .*sync: unknown option 'lock_tll', did you mean 'lock_ttl'"),
        ({"lock_ttl": -1}, "lock_ttl of a call of .*sync must be a number"),
        ({"lock_key": "{nobody}"}, "names 'nobody', but the task has: account_id, day"),
        ({"lock_key": [str]}, "cannot be a callable"),
        ({"lock_lost": print}, "cannot be a callable"),
        ({"lock_until": "start"}, 'task .*sync: lock_until="start" .* set lock_from="publish"'),
        ({"lock_queue_ttl": 5}, 'lock_queue_ttl of a call of .*sync .* set lock_from="publish"'),
        ({"lock_duplicate": "raise"}, 'lock_duplicate of a call of .*sync .* set lock_from="publish"'),
    ],
)
def test_what_cannot_work_is_refused(plan, options, said):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=said):
        plan.for_call(options)


def test_a_message_whose_options_cannot_work_is_refused(plan):
    """Semantics 16: of a newer version, or a header that was written by hand."""
    with pytest.raises(ConfigurationError, match="unknown option 'lock_colour'"):
        plan.for_message(read_headers({OPTIONS: {"colour": "red"}}, "sync"))


def test_celerys_own_tasks_have_none():
    app = Celery("unit", task_cls=LockedTask, set_as_current=False)
    assert Plan.of(type(app.tasks["celery.map"]), app) is None


def test_keys_are_sorted_and_each_comes_once():
    app = Celery("unit", set_as_current=False)

    def several(source, target):
        return {f"account:{target}", "bank"}

    @app.task(base=LockedTask, shared=False, lock_key=["account:{source}", several, "bank"])
    def transfer(source, target):
        return source

    keys_of = type(app.tasks[transfer.name])._lock_plan.keys_of
    assert keys_of(("b", "a"), {}) == ("account:a", "account:b", "bank")
    assert keys_of(("a",), {"target": "b"}) == keys_of((), {"source": "b", "target": "a"})
    assert keys_of(("a", "a"), {}) == ("account:a", "bank")


class Colour(enum.Enum):
    RED = "red"


class Name(str):
    """Its `__format__` would be the user's code."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("options", "default", "is_plain"),
    [
        ({}, (1, {"c": [None, 2.0]}), True),
        ({"lock_key": "{a}"}, None, True),
        ({"lock_key": ["{a}"]}, None, False),
        ({"lock_key": lambda a: a}, None, False),
        ({}, Colour.RED, False),
        ({}, Name("b"), False),
        ({}, [Name("b")], False),
        ({}, {Name("b"): 1}, False),
        ({"pydantic": True}, None, False),
    ],
)
def test_a_plain_key_is_made_without_the_users_code(options, default, is_plain):
    """The worker makes only such keys on its event loop."""
    app = Celery("unit", set_as_current=False)

    @app.task(base=LockedTask, shared=False, **options)
    def run(a, order: Order = default):
        return a

    assert type(app.tasks[run.name])._lock_plan.has_plain_key == is_plain


@pytest.mark.parametrize("made", [[], ["a", ""], ["a", 7], None])
def test_a_callable_that_makes_no_keys_is_an_error(made):
    """Semantics 16."""
    app = Celery("unit", set_as_current=False)

    @app.task(base=LockedTask, shared=False, lock_key=["a", lambda: made])
    def sync():
        return None

    with pytest.raises(ConfigurationError, match="must return a non-empty str, or several"):
        type(app.tasks[sync.name])._lock_plan.keys_of((), {})


def test_a_fleet_may_narrow_what_its_messages_choose():
    app = Celery("unit", set_as_current=False)
    app.conf.rlock_call_options = ["lock_busy", "lock_ttl"]

    @app.task(base=LockedTask, shared=False)
    def sync():
        return None

    plan = type(app.tasks[sync.name])._lock_plan
    assert plan.for_call({"lock_busy": "skip"})[0].options.busy == "skip"
    for refuse in (
        lambda: plan.for_call({"lock_busy": "skip", "lock_hold_at_least": 5}),
        lambda: plan.for_message(read_headers({OPTIONS: {"hold_at_least": 5}}, "sync")),
    ):
        with pytest.raises(
            ConfigurationError, match="cannot choose lock_hold_at_least: the setting rlock_call"
        ):
            refuse()


@pytest.mark.parametrize("allowed", ["lock_busy", ["busy"], ["lock_bussy"], 7, True, [7]])
def test_the_setting_that_narrows_them_is_checked(allowed):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="rlock_call_options must be a list of options such as"):
        allowed_call_options({"rlock_call_options": allowed})
    assert allowed_call_options({"rlock_call_options": []}) == frozenset()
