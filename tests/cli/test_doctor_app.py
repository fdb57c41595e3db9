"""The doctor's checks of the app: each finds its problem, reports nothing without it, and asks no server."""

from __future__ import annotations

import functools
import sys
import types
from types import SimpleNamespace

import pytest
from celery import Celery, Task
from celery.worker.request import Request

from celery_rlock import LockedTask
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.setup import Setup
from celery_rlock.running.reschedule import CAN_BE_WOKEN
from celery_rlock.worker.request import LockedRequestMixin
from tests.cli.doctor_app import (
    ELSEWHERE,
    OwnPublishing,
    OwnRequest,
    add_task,
    check,
    is_fine,
    make_app,
    only,
)


def configured(monkeypatch, namespace=None, **names):
    """An app that reads its settings from a module."""
    module = types.ModuleType("examined_settings")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "examined_settings", module)
    app = Celery("examined", set_as_current=False)
    app.config_from_object("examined_settings", namespace=namespace)
    return app


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_no_server_is_asked(proxy, scheme):
    """A worker runs these checks when it starts."""
    url = f"{scheme}://127.0.0.1:{proxy.port}"
    app = make_app(conf={"broker_url": proxy.url, "result_backend": proxy.url, "rlock_url": url})
    for one in CHECKS:
        if one.asks == "app":
            assert {finding.level for finding in check(one.name, app)} <= {"ok", "warn"}
    assert proxy.seen == []


class TestSettings:
    def test_an_unknown_setting_is_an_error_with_a_suggestion(self):
        app = Celery("examined", set_as_current=False)
        app.conf.update({**ELSEWHERE, "rlock_tll": 5})
        what, _ = only(check("settings", app), "error")
        assert "rlock_tll" in what
        assert "rlock_ttl" in what

    @pytest.mark.parametrize("name", ["RLOCK_TTL", "CELERY_RLOCK_TTL"])
    def test_a_setting_that_celery_ignores_is_an_error(self, monkeypatch, name):
        app = configured(monkeypatch, **ELSEWHERE, **{name: 5})
        what, todo = only(check("settings", app), "error")
        assert name in what
        assert "rlock_ttl" in todo

    def test_a_setting_outside_of_the_namespace_is_an_error(self, monkeypatch):
        app = configured(monkeypatch, "CELERY", CELERY_BROKER_URL="redis://x/0", RLOCK_TTL=5)
        what, todo = only(check("settings", app), "error")
        assert "RLOCK_TTL" in what
        assert "CELERY_RLOCK_TTL" in todo

    def test_settings_of_the_users_own_are_fine(self, monkeypatch):
        app = configured(monkeypatch, **ELSEWHERE, REDIS_RLOCK_TIMEOUT=5, REDIS_RLOCK_TTL=5)
        assert is_fine("settings", app)

    def test_a_setting_inside_of_the_namespace_is_fine(self, monkeypatch):
        assert is_fine(
            "settings", configured(monkeypatch, "CELERY", CELERY_BROKER_URL="redis://x/0", CELERY_RLOCK_TTL=5)
        )

    def test_disabled_locking_is_a_warning(self):
        only(check("settings", make_app(conf={**ELSEWHERE, "rlock_enabled": False})), "warn")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rlock_prefix": "{x}"},
            {"rlock_enabled": "no"},
            {"broker_url": "amqp://x", "result_backend": None},
        ],
    )
    def test_an_unusable_value_is_an_error(self, wrong):
        only(check("settings", make_app(conf={**ELSEWHERE, **wrong})), "error")

    @pytest.mark.parametrize("option", [{"lock_queue_ttl": 60}, {"lock_duplicate": "raise"}])
    def test_an_option_of_unique_tasks_on_another_task_is_a_warning(self, option):
        """It is no error: one call may still choose `lock_from="publish"`."""
        [name] = option
        what, todo = only(check("settings", make_app(**option)), "warn")
        assert f"{name} of locked has no effect" in what
        assert 'lock_from="publish"' in todo
        assert is_fine("settings", make_app(lock_from="publish", **option))

    def test_a_setting_of_unique_tasks_in_an_app_without_any_is_a_warning(self):
        conf = {**ELSEWHERE, "rlock_queue_ttl": 60}
        what, _ = only(check("settings", make_app(conf=conf)), "warn")
        assert "rlock_queue_ttl has no effect" in what
        assert is_fine("settings", make_app(conf=conf, lock_from="publish"))

    def test_valid_settings_are_fine(self):
        assert is_fine("settings", make_app(conf={**ELSEWHERE, "rlock_ttl": 5, "rlock_prefix": "locks:"}))


class TestTasks:
    def test_a_task_that_cannot_be_defined_is_remembered(self):
        setup = Setup(make_app(lock_tll=5))
        setup.load()
        assert "lock_tll" in str(setup.load_error)

    def test_an_app_without_locked_tasks_is_a_warning(self):
        only(check("tasks", Celery("examined", set_as_current=False)), "warn")

    def test_a_task_with_options_and_another_base_is_an_error(self):
        app = make_app(base=None, lock_key="k", lock_ttl=5)
        [forgotten, none_locked] = check("tasks", app)
        assert (forgotten.level, none_locked.level) == ("error", "warn")
        assert "task locked has lock_key, lock_ttl and runs without a lock" in forgotten.what
        assert "base=LockedTask" in forgotten.todo

    def test_options_of_a_base_class_of_the_users_own_are_told_too(self):
        class OwnLock(Task):
            abstract = True
            lock_key = "mine"

        app = make_app()
        add_task(app, "other", base=OwnLock)
        [forgotten, locked] = check("tasks", app)
        assert (forgotten.level, locked.level) == ("error", "ok")
        assert "task other has lock_key" in forgotten.what

    def test_a_forgotten_base_beside_a_locked_task_is_what_the_app_cannot_be_loaded_for(self):
        app = make_app()
        add_task(app, "other", base=None, lock_busy="skip")
        setup = Setup(app)
        setup.load()
        assert "task other has lock_busy and runs without a lock" in str(setup.load_error)

    def test_locked_tasks_are_counted(self):
        what, _ = only(check("tasks", make_app()), "ok")
        assert "1" in what


class SuperFirst:
    def apply_async(self, *args, **kwargs):
        return super().apply_async(*args, **kwargs)


class WithoutSuper:
    def apply_async(self, *args, **options):
        return self.app.send_task(self.name, *args, **options)


class CallsSuper(LockedTask):
    abstract = True

    def apply_async(self, *args, **kwargs):
        return super().apply_async(*args, **kwargs)


def logged(method):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        return method(*args, **kwargs)

    return wrapper


class SuperInInnerFunction(LockedTask):
    abstract = True

    @logged
    def apply_async(self, *args, **kwargs):
        def inner():
            return LockedTask.apply_async(self, *args, **kwargs)

        return inner()


class MixedIn(WithoutSuper, LockedTask):
    abstract = True


class Hidden(SuperFirst, OwnPublishing):
    abstract = True


class OwnMethods(LockedTask):
    """Overrides what may be overridden without super()."""

    abstract = True

    @classmethod
    def on_bound(cls, app):
        pass

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class MixedRequest(LockedRequestMixin, Request):
    pass


class GoodRequest(LockedTask):
    abstract = True
    Request = MixedRequest


class TestBypass:
    @pytest.mark.parametrize("base", [OwnPublishing, MixedIn, Hidden])
    def test_apply_async_without_super_is_an_error_with_lock_from_publish(self, base):
        assert is_fine("bypass", make_app(base=base, lock_from="run"))
        what, todo = only(check("bypass", make_app(base=base, lock_from="publish")), "error")
        assert "locked" in what
        assert "super().apply_async()" in todo

    def test_a_base_class_of_many_tasks_is_reported_once(self):
        app = make_app(base=OwnPublishing)
        for number in range(4):
            add_task(app, f"other {number}", base=OwnPublishing)
        what, _ = only(check("bypass", app), "error")
        assert "locked, other 0, other 1 and 2 more" in what

    def test_an_own_request_class_is_a_warning(self):
        _, todo = only(check("bypass", make_app(base=OwnRequest)), "warn")
        assert "LockedRequestMixin" in todo

    @pytest.mark.parametrize("base", [LockedTask, CallsSuper, SuperInInnerFunction, GoodRequest])
    def test_methods_that_call_super_are_fine(self, base):
        assert is_fine("bypass", make_app(base=base, lock_from="publish"))

    def test_no_other_method_can_leave_the_lock_out(self):
        assert is_fine("bypass", make_app(base=OwnMethods, lock_from="publish"))


class TestKeys:
    def test_one_key_with_two_leases_is_a_warning(self):
        app = make_app(lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "other", lock_key=["account:{account_id}", "x"], lock_ttl=60)
        what, _ = only(check("keys", app), "warn")
        assert "locked, other" in what
        assert "10, 60 s" in what

    def test_different_keys_and_equal_leases_are_fine(self):
        app = make_app(lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "equal", lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "other", lock_key="shop:{account_id}", lock_ttl=60)
        add_task(app, "by default", lock_ttl=61)
        assert is_fine("keys", app)


class TestShared:
    @pytest.mark.parametrize(
        "url", ["redis://localhost/0", "redis://127.0.0.1:7000/0", "unix:///run/redis.sock"]
    )
    def test_a_lock_server_on_localhost_with_a_remote_broker_is_an_error(self, url):
        app = make_app(conf={**ELSEWHERE, "rlock_url": url}, lock_from="publish")
        what, _ = only(check("shared", app), "error")
        assert "broker.test" in what
        assert "publishes locked" in what

    @pytest.mark.parametrize(
        "conf",
        [
            ELSEWHERE,
            {"broker_url": "redis://localhost/0"},
            {**ELSEWHERE, "rlock_url": "redis://locks.test/0"},
        ],
    )
    def test_a_lock_server_as_remote_as_the_broker_is_fine(self, conf):
        assert is_fine("shared", make_app(conf=conf))

    @pytest.mark.parametrize(
        "conf",
        [
            {"rlock_client": "a:b"},
            {"rlock_url": "sentinel://localhost/0?master_name=m"},
        ],
    )
    def test_an_unknown_address_is_not_checked(self, conf):
        only(check("shared", make_app(conf={**ELSEWHERE, **conf})), "skip")


class TestResults:
    def test_a_skip_without_a_stored_result_is_a_warning(self):
        what, _ = only(check("results", make_app(lock_busy="skip", ignore_result=True)), "warn")
        assert "skip" in what

    def test_a_duplicate_without_a_stored_result_is_a_warning(self):
        conf = {"broker_url": ELSEWHERE["broker_url"]}
        _, todo = only(check("results", make_app(conf=conf, lock_from="publish")), "warn")
        assert "lock_duplicate" in todo

    def test_stored_results_are_fine(self):
        assert is_fine("results", make_app(lock_busy="skip", lock_from="publish"))

    def test_retrying_tasks_need_no_results(self):
        assert is_fine("results", make_app(conf={"broker_url": ELSEWHERE["broker_url"]}))


class TestLeases:
    @pytest.mark.parametrize("ttl", [3600, 0.5])
    def test_a_lease_that_is_too_long_or_too_short_is_a_warning(self, ttl):
        what, todo = only(check("leases", make_app(lock_ttl=ttl)), "warn")
        assert f"{ttl} s" in what
        assert "lock_ttl" in todo

    def test_the_default_lease_is_fine(self):
        assert is_fine("leases", make_app())


class TestLimits:
    @pytest.mark.parametrize("limits", [{}, {"time_limit": 60}])
    def test_a_run_that_may_outlast_lock_max_hold_is_a_warning(self, limits):
        what, _ = only(check("limits", make_app(lock_max_hold=10, **limits)), "warn")
        assert "lock_max_hold" in what

    def test_the_time_limit_of_the_worker_counts(self):
        worker = SimpleNamespace(time_limit=9, soft_time_limit=None)
        only(check("limits", make_app(lock_max_hold=10), worker=worker), "ok")

    @pytest.mark.parametrize("limits", [{"time_limit": 9}, {"lock_lost": "abort"}])
    def test_a_run_that_cannot_outlast_lock_max_hold_is_fine(self, limits):
        assert is_fine("limits", make_app(lock_max_hold=10, **limits))

    def test_a_wait_as_long_as_the_time_limit_is_an_error(self):
        conf = {**ELSEWHERE, "task_soft_time_limit": 20}
        what, _ = only(check("limits", make_app(conf=conf, lock_wait=30)), "error")
        assert "lock_wait" in what

    def test_a_wait_below_the_time_limit_is_fine(self):
        assert is_fine("limits", make_app(lock_wait=30, time_limit=60))


class TestAcks:
    def test_acks_late_without_reject_on_worker_lost_is_a_warning(self):
        _, todo = only(check("acks", make_app(acks_late=True)), "warn")
        assert "task_reject_on_worker_lost" in todo

    def test_reject_on_worker_lost_without_acks_late_is_a_warning(self):
        _, todo = only(check("acks", make_app(reject_on_worker_lost=True)), "warn")
        assert "task_acks_late" in todo

    def test_both_together_are_fine(self):
        what, _ = only(check("acks", make_app(acks_late=True, reject_on_worker_lost=True)), "ok")
        assert "killed runs are redelivered" in what

    def test_neither_is_a_warning_that_no_worker_logs(self):
        """It is Celery's default, and yet bad news."""
        what, todo = only(found := check("acks", make_app()), "warn")
        assert "a run that is killed is lost" in what
        assert "task_acks_late" in todo
        assert not found[0].at_start


def visible_for(seconds):
    return {**ELSEWHERE, "broker_transport_options": {"visibility_timeout": seconds}}


class TestVisibility:
    def test_the_default_of_an_hour_is_a_warning(self):
        what, _ = only(check("visibility", make_app()), "warn")
        assert "3600 s" in what

    def test_without_waiting_tasks_the_default_is_fine(self):
        assert is_fine("visibility", make_app(lock_busy="fail"))

    @pytest.mark.parametrize("options", [{"lock_ttl": 200}, {"lock_backoff_max": 200}, {"lock_wait": 200}])
    def test_a_timeout_shorter_than_a_wait_is_a_warning(self, options):
        what, todo = only(check("visibility", make_app(conf=visible_for(120), **options)), "warn")
        assert "120 s" in what
        assert "above 200" in todo

    def test_a_timeout_shorter_than_a_run_is_a_warning(self):
        app = make_app(conf=visible_for(120), time_limit=300, acks_late=True)
        _, todo = only(check("visibility", app), "warn")
        assert "above 300" in todo

    def test_a_run_with_early_acks_may_be_longer(self):
        assert is_fine("visibility", make_app(conf=visible_for(120), time_limit=300))

    def test_a_chosen_timeout_is_fine(self):
        assert is_fine("visibility", make_app(conf=visible_for(120)))

    def test_other_brokers_are_not_checked(self):
        only(check("visibility", make_app(conf={**ELSEWHERE, "broker_url": "amqp://x"})), "skip")


class TestPrefetch:
    def test_an_unlimited_prefetch_is_a_warning(self):
        what, _ = only(
            check("prefetch", make_app(conf={**ELSEWHERE, "worker_prefetch_multiplier": 0})), "warn"
        )
        assert "worker_prefetch_multiplier" in what

    def test_the_option_of_the_worker_counts(self):
        only(check("prefetch", make_app(), worker=SimpleNamespace(prefetch_multiplier=0)), "warn")

    def test_a_low_eta_task_limit_is_a_warning(self):
        what, _ = only(check("prefetch", make_app(conf={**ELSEWHERE, "worker_eta_task_limit": 5})), "warn")
        assert "worker_eta_task_limit" in what

    def test_a_high_eta_task_limit_is_fine(self):
        assert is_fine("prefetch", make_app(conf={**ELSEWHERE, "worker_eta_task_limit": 5000}))

    def test_without_waiting_tasks_it_is_not_checked(self):
        only(
            check(
                "prefetch", make_app(conf={**ELSEWHERE, "worker_prefetch_multiplier": 0}, lock_busy="skip")
            ),
            "skip",
        )


QUORUM = {**ELSEWHERE, "broker_url": "amqp://x", "task_default_queue_type": "quorum"}


class TestWaking:
    @pytest.fixture
    def old_celery(self, monkeypatch):
        """Simulated, because only one Celery is installed here."""
        monkeypatch.setattr("celery_rlock.doctor.delivery.CAN_BE_WOKEN", False)

    def test_a_celery_without_wake_ups_is_a_warning(self, old_celery):
        what, todo = only(check("waking", make_app(lock_backoff_max=7)), "warn")
        assert "Celery 5.7" in what
        assert "7 s" in what
        assert "lock_backoff_max" in todo

    def test_without_waiting_tasks_wake_ups_do_not_matter(self, old_celery):
        only(check("waking", make_app(lock_busy="skip")), "skip")

    @pytest.mark.skipif(not CAN_BE_WOKEN, reason="needs Celery 5.7")
    @pytest.mark.parametrize("conf", [{}, QUORUM], ids=["classic queues", "quorum queues"])
    def test_a_celery_with_wake_ups_is_fine(self, conf):
        assert is_fine("waking", make_app(conf=conf))
