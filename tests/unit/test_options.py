from __future__ import annotations

import math

import pytest
from celery import Celery

from celery_rlock import ConfigurationError, LockedTask
from celery_rlock.options.options import NAMES, Options, resolve, unknown_settings


def define(app=None, **options):
    """A task with these options, defined as users do."""
    app = app or Celery("unit", set_as_current=False)

    @app.task(base=LockedTask, shared=False, **options)
    def sync(account_id, day=None):
        return account_id

    return app.tasks[sync.name]


def options_of(task):
    return type(task)._lock_plan.options


def test_the_defaults_are_the_contracts():
    assert options_of(define()) == Options(
        key=None,
        ttl=30,
        max_hold=None,
        hold_at_least=0,
        wait=0,
        busy="retry",
        backoff=0.5,
        backoff_max=30,
        jitter=True,
        max_attempts=None,
        unavailable="retry",
        lost="warn",
        from_="run",
        until="return",
        queue_ttl=3600,
        duplicate="existing",
    )


def test_a_task_goes_before_the_app_and_the_app_before_the_default():
    app = Celery("unit", set_as_current=False)
    app.conf.update(rlock_ttl=60, rlock_wait=2)
    options = options_of(define(app, lock_ttl=5))
    assert (options.ttl, options.wait, options.backoff) == (5, 2, 0.5)


def test_a_task_can_say_none_where_the_app_says_a_number():
    app = Celery("unit", set_as_current=False)
    app.conf.update(rlock_max_hold=60)
    assert options_of(define(app, lock_max_hold=None)).max_hold is None


def test_settings_in_a_module_with_a_namespace_count():
    app = Celery("unit", set_as_current=False)
    app.config_from_object({"CELERY_RLOCK_TTL": 7}, namespace="CELERY")
    assert options_of(define(app)).ttl == 7


def test_class_attributes_are_options():
    app = Celery("unit", set_as_current=False)

    class Sync(LockedTask):
        name = "sync"
        lock_ttl = 9

        def run(self, account_id):
            return account_id

    assert options_of(app.register_task(Sync())).ttl == 9


def test_task_annotations_are_options():
    app = Celery("unit", set_as_current=False)
    app.conf.task_annotations = {"*": {"lock_ttl": 11}}
    assert options_of(define(app)).ttl == 11


def test_a_callable_stays_a_function_though_it_stands_on_a_class():
    def choose(task, error):
        return "skip"

    assert options_of(define(lock_busy=choose)).busy is choose


BAD = [
    ("ttl", 0),
    ("ttl", -1),
    ("ttl", math.nan),
    ("ttl", math.inf),
    ("ttl", "30"),
    ("ttl", True),
    ("ttl", None),
    ("limit", 0),
    ("limit", -3),
    ("limit", "5"),
    ("limit", 2.0),
    ("limit", True),
    ("limit", None),
    ("limit", 10_001),
    ("limit", []),
    ("limit", [2, 0]),
    ("limit", [2, "x"]),
    ("max_hold", 0),
    ("max_hold", "1h"),
    ("wait", -0.1),
    ("wait", math.nan),
    ("busy", "ignore"),
    ("busy", None),
    ("backoff", 0),
    ("backoff_max", "30"),
    ("jitter", 1),
    ("max_attempts", 0),
    ("max_attempts", 2.5),
    ("max_attempts", True),
    ("unavailable", "skip"),
    ("lost", "ignore"),
    ("hold_at_least", -1),
    ("from", "send"),
    ("until", "end"),
    ("pending", -1),
    ("pending", True),
    ("pending", "1"),
    ("pending", 1.0),
    ("pending", math.nan),
    ("pending", None),
    ("pending", 1_001),
    ("queue_ttl", 0),
    ("duplicate", "drop"),
    ("replicas", -1),
    ("replicas", True),
    ("key", ""),
    ("key", 7),
    ("key", []),
    ("key", ["account:{account_id}", None]),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_an_error_when_the_task_is_defined(name, value):
    """Semantics 16: bad input gives a clear error before run()."""
    with pytest.raises(ConfigurationError, match=rf"lock_{name} of task sync must be .*, not "):
        define(**{f"lock_{name}": value})


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_in_the_settings_is_an_error_too(name, value):
    """Semantics 16."""
    app = Celery("unit", set_as_current=False)
    app.conf.update({f"rlock_{name}": value})
    with pytest.raises(ConfigurationError, match=rf"setting rlock_{name} must be "):
        define(app)


@pytest.mark.parametrize(
    ("key", "limit"), [("k", [1, 2]), (["k:{account_id}", "l"], [1]), (["k:{account_id}", "l"], [1, 2, 3])]
)
def test_as_many_limits_as_keys(key, limit):
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match=r"task sync: lock_limit has . entries, but lock_key has ."):
        define(lock_key=key, lock_limit=limit)
    define(lock_key=["k:{account_id}", "l"], lock_limit=[1, lambda account_id: 2])


@pytest.mark.parametrize("limit", [2, [2], lambda account_id: 1])
def test_a_limit_is_refused_with_a_lock_from_publish(limit):
    """Semantics 17."""
    with pytest.raises(ConfigurationError, match='lock_limit does not work with lock_from="publish"'):
        define(lock_limit=limit, lock_from="publish")
    define(lock_limit=1, lock_from="publish")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, 'set lock_from="publish"'),
        ({"lock_from": "run"}, 'set lock_from="publish"'),
        ({"lock_from": "publish", "lock_limit": 2}, "lock_limit does not work"),
        ({"lock_from": "publish", "lock_until": "start"}, "leave one of them out"),
        ({"lock_from": "publish", "lock_busy": "skip"}, 'set lock_busy="retry"'),
        ({"lock_from": "publish", "lock_busy": "fail"}, 'set lock_busy="retry"'),
        ({"lock_from": "publish", "lock_busy": "reject"}, 'set lock_busy="retry"'),
        ({"lock_from": "publish", "lock_unavailable": "run"}, 'set lock_unavailable="retry"'),
    ],
)
def test_options_with_which_a_pending_call_could_be_lost_are_refused(options, error):
    """Semantics 16 and 18."""
    with pytest.raises(ConfigurationError, match=f"task sync: .*{error}"):
        define(lock_pending=1, **options)
    define(lock_pending=0, **{**options, "lock_limit": 1, "lock_from": "publish"})
    define(lock_pending=1, lock_from="publish")


def test_replace_is_refused_where_a_run_could_begin_without_giving_up_its_place():
    """Semantics 16 and 19."""
    with pytest.raises(
        ConfigurationError, match='with lock_duplicate="replace" a run must give up its place'
    ):
        define(lock_duplicate="replace", lock_from="publish", lock_unavailable="run")


@pytest.mark.parametrize("options", [{"lock_pending": 1}, {"lock_pending": -1}, {"lock_pending": True}])
def test_a_call_cannot_choose_a_pending_that_does_not_fit(options):
    """Semantics 16: nothing is published."""
    task = define()
    with pytest.raises(ConfigurationError, match="lock_pending"):
        task.apply_async((1,), **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lock_limit": 2}, "lock_limit"),
        ({"lock_limit": lambda account_id: 2}, "lock_limit"),
        ({"lock_from": "publish"}, 'lock_from="publish"'),
    ],
)
def test_replacing_is_refused_where_it_cannot_work(options, why):
    """Semantics 16 and 20: as an option of the task, and as an option of one call."""
    with pytest.raises(ConfigurationError, match=f'task sync: lock_busy="replace" does not work with {why}'):
        define(lock_busy="replace", **options)
    with pytest.raises(ConfigurationError, match=f'lock_busy="replace" does not work with {why}'):
        define(**options).apply_async((7,), lock_busy="replace")
    define(lock_busy="replace")


def test_every_option_is_tried_with_a_bad_value():
    assert {name for name, _ in BAD} == set(NAMES)


def test_an_unknown_option_says_what_was_meant():
    """Semantics 16: unknown option."""
    with pytest.raises(ConfigurationError, match="unknown option 'lock_tll', did you mean 'lock_ttl'"):
        define(lock_tll=3)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("lock_timeout", "lock_ttl"),
        ("lock_expiry", "lock_ttl"),
        ("lock_blocking_timeout", "lock_wait"),
        ("lock_unique_on", "lock_key"),
        ("lock_raise_on_duplicate", "lock_duplicate"),
    ],
)
def test_what_other_locks_call_an_option_is_understood(theirs, ours):
    """Semantics 16: unknown option."""
    with pytest.raises(ConfigurationError, match=f"unknown option '{theirs}', did you mean '{ours}'"):
        define(**{theirs: 3})


@pytest.mark.parametrize("name", ["rlock_backof", "CELERY_RLOCK_BACKOF"])
def test_an_unknown_setting_says_what_was_meant(name):
    """Semantics 16: unknown setting."""
    assert unknown_settings({name: 3}) == ["unknown option 'rlock_backof', did you mean 'rlock_backoff'?"]
    with pytest.raises(ConfigurationError, match="did you mean 'rlock_backoff'"):
        resolve(LockedTask, {name: 3})


def test_a_misspelt_option_that_is_a_function_is_no_method():
    """Semantics 16."""
    with pytest.raises(ConfigurationError, match="did you mean 'lock_busy'"):
        define(lock_bussy=lambda task, error: "skip")


def test_methods_of_the_users_own_are_no_options():
    class Account(LockedTask):
        name = "account"

        def lock_account(self):
            return "locked"

        @classmethod
        def lock_all(cls):
            return "locked"

        @property
        def lock_state(self):
            return "locked"

        def run(self):
            return self.lock_account()

    app = Celery("unit", set_as_current=False)
    assert app.register_task(Account()).lock_state == "locked"


def test_settings_of_the_users_own_are_no_options():
    app = Celery("unit", set_as_current=False)
    settings = {"REDIS_RLOCK_TIMEOUT": 5, "MY_RLOCK_TTL": 6, "CELERY_RLOCK_TTL": 7}
    app.config_from_object(settings, namespace="CELERY")
    assert options_of(define(app)).ttl == 7


def test_the_apps_own_namespace_counts():
    """Semantics 16: unknown setting."""
    app = Celery("unit", set_as_current=False)
    app.config_from_object({"TASKS_RLOCK_TTTL": 7}, namespace="TASKS")
    with pytest.raises(ConfigurationError, match="did you mean 'rlock_ttl'"):
        define(app)


def test_known_settings_are_known():
    names = [f"rlock_{name}" for name in NAMES] + [
        "rlock_url",
        "rlock_prefix",
        "rlock_client",
        "rlock_enabled",
        "rlock_reaper",
    ]
    assert unknown_settings(dict.fromkeys(names)) == []
    assert unknown_settings({"my_rlocker": 1, "broker_url": ""}) == []


def test_celerys_own_tasks_are_not_locked_when_every_task_is():
    app = Celery("unit", task_cls=LockedTask, set_as_current=False)
    assert isinstance(app.tasks["celery.chord_unlock"], LockedTask)
    assert app.tasks["celery.chord_unlock"]._lock_plan is None
