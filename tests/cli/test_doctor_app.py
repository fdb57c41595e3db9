"""What the doctor sees without asking anybody: each check finds its problem, and is quiet without it."""

from __future__ import annotations

import functools
import sys
import types
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.request import Request

from celery_rlock import LockedTask
from celery_rlock.checks.catalogue import CHECKS
from celery_rlock.checks.setup import Setup
from celery_rlock.worker import waking
from celery_rlock.worker.request import LockedRequestMixin
from tests.ops.clinic import ELSEWHERE, add_task, is_fine, look, make_app, only


def configured(monkeypatch, namespace=None, **names):
    """An app whose settings are a module's."""
    module = types.ModuleType("patient_settings")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "patient_settings", module)
    app = Celery("patient", set_as_current=False)
    app.config_from_object("patient_settings", namespace=namespace)
    return app


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_nobody_is_asked(proxy, scheme):
    """A worker looks at these while it starts."""
    url = f"{scheme}://127.0.0.1:{proxy.port}"
    app = make_app(conf={"broker_url": proxy.url, "result_backend": proxy.url, "rlock_url": url})
    for check in CHECKS:
        if check.asks == "app":
            assert {finding.level for finding in look(check.name, app)} <= {"ok", "warn"}
    assert proxy.seen == []


class TestSettings:
    def test_an_unknown_one_is_named_with_what_was_meant(self):
        app = Celery("patient", set_as_current=False)
        app.conf.update({**ELSEWHERE, "rlock_tll": 5})
        what, _ = only(look("settings", app), "error")
        assert "rlock_tll" in what
        assert "rlock_ttl" in what

    @pytest.mark.parametrize("name", ["RLOCK_TTL", "CELERY_RLOCK_TTL"])
    def test_one_that_is_not_seen_is_named(self, monkeypatch, name):
        app = configured(monkeypatch, **ELSEWHERE, **{name: 5})
        what, todo = only(look("settings", app), "error")
        assert name in what
        assert "rlock_ttl" in todo

    def test_one_outside_of_the_namespace_is_not_seen(self, monkeypatch):
        app = configured(monkeypatch, "CELERY", CELERY_BROKER_URL="redis://x/0", RLOCK_TTL=5)
        what, todo = only(look("settings", app), "error")
        assert "RLOCK_TTL" in what
        assert "CELERY_RLOCK_TTL" in todo

    def test_one_inside_of_the_namespace_is_seen(self, monkeypatch):
        assert is_fine(
            "settings", configured(monkeypatch, "CELERY", CELERY_BROKER_URL="redis://x/0", CELERY_RLOCK_TTL=5)
        )

    def test_locks_that_are_switched_off_are_told(self):
        only(look("settings", make_app(conf={**ELSEWHERE, "rlock_enabled": False})), "warn")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rlock_prefix": "{x}"},
            {"rlock_enabled": "no"},
            {"broker_url": "amqp://x", "result_backend": None},
        ],
    )
    def test_one_that_cannot_be_used_is_told(self, wrong):
        only(look("settings", make_app(conf={**ELSEWHERE, **wrong})), "error")

    def test_good_ones_are_fine(self):
        assert is_fine("settings", make_app(conf={**ELSEWHERE, "rlock_ttl": 5, "rlock_prefix": "locks:"}))


class TestTasks:
    def test_one_that_cannot_be_defined_is_told(self):
        setup = Setup(make_app(lock_tll=5))
        setup.load()
        assert "lock_tll" in str(setup.broken)

    def test_an_app_without_any_is_told(self):
        only(look("tasks", Celery("patient", set_as_current=False)), "warn")

    def test_they_are_counted(self):
        what, _ = only(look("tasks", make_app()), "ok")
        assert "1" in what


class PassesOnFirst:
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class Plain:
    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class PassesOn(LockedTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


def logged(method):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        return method(*args, **kwargs)

    return wrapper


class PassesOnInside(LockedTask):
    abstract = True

    @logged
    def __call__(self, *args, **kwargs):
        def inner():
            return LockedTask.__call__(self, *args, **kwargs)

        return inner()


class OwnMethods(LockedTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs)


class Mixed(Plain, LockedTask):
    abstract = True


class Hidden(PassesOnFirst, OwnMethods):
    abstract = True


class OwnApplyAsync(LockedTask):
    abstract = True

    def apply_async(self, args=None, kwargs=None, **options):
        return self.app.send_task(self.name, args, kwargs, **options)


class OwnBinding(LockedTask):
    abstract = True

    @classmethod
    def on_bound(cls, app):
        pass


class OwnRequest(LockedTask):
    abstract = True
    Request = Request


class MixedRequest(LockedRequestMixin, Request):
    pass


class GoodRequest(LockedTask):
    abstract = True
    Request = MixedRequest


class TestBypass:
    @pytest.mark.parametrize("base", [OwnMethods, Mixed, Hidden])
    def test_a_call_without_super_takes_no_lock(self, base):
        what, todo = only(look("bypass", make_app(base=base)), "error")
        assert "locked" in what
        assert "super().__call__()" in todo

    def test_a_class_of_many_tasks_is_told_once(self):
        app = make_app(base=OwnMethods)
        for number in range(4):
            add_task(app, f"other {number}", base=OwnMethods)
        what, _ = only(look("bypass", app), "error")
        assert "locked, other 0, other 1 and 2 more" in what

    def test_a_binding_without_super_takes_no_lock(self):
        _, todo = only(look("bypass", make_app(base=OwnBinding)), "error")
        assert "super().on_bound()" in todo

    def test_an_apply_async_without_super_matters_for_locks_from_publish_on(self):
        assert is_fine("bypass", make_app(base=OwnApplyAsync))
        _, todo = only(look("bypass", make_app(base=OwnApplyAsync, lock_from="publish")), "error")
        assert "super().apply_async()" in todo

    def test_a_request_of_its_own_is_told(self):
        _, todo = only(look("bypass", make_app(base=OwnRequest)), "warn")
        assert "LockedRequestMixin" in todo

    @pytest.mark.parametrize("base", [LockedTask, PassesOn, PassesOnInside, GoodRequest])
    def test_what_passes_on_is_fine(self, base):
        assert is_fine("bypass", make_app(base=base))


class TestKeys:
    def test_one_key_with_two_leases_is_told(self):
        app = make_app(lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "other", lock_key=["account:{account_id}", "x"], lock_ttl=60)
        what, _ = only(look("keys", app), "warn")
        assert "locked, other" in what
        assert "10, 60 s" in what

    def test_other_keys_and_equal_leases_are_fine(self):
        app = make_app(lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "equal", lock_key="account:{account_id}", lock_ttl=10)
        add_task(app, "other", lock_key="shop:{account_id}", lock_ttl=60)
        add_task(app, "by default", lock_ttl=61)
        assert is_fine("keys", app)


class TestShared:
    @pytest.mark.parametrize(
        "url", ["redis://localhost/0", "redis://127.0.0.1:7000/0", "unix:///run/redis.sock"]
    )
    def test_a_local_server_with_a_broker_elsewhere_is_told(self, url):
        app = make_app(conf={**ELSEWHERE, "rlock_url": url}, lock_from="publish")
        what, _ = only(look("shared", app), "error")
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
    def test_a_server_that_is_as_far_is_fine(self, conf):
        assert is_fine("shared", make_app(conf=conf))

    @pytest.mark.parametrize(
        "conf",
        [
            {"rlock_client": "a:b"},
            {"rlock_url": "sentinel://localhost/0?master_name=m"},
            {"rlock_url": "x://"},
        ],
    )
    def test_where_the_locks_are_may_not_be_known(self, conf):
        only(look("shared", make_app(conf={**ELSEWHERE, **conf})), "skip")


class TestResults:
    def test_a_skip_that_nobody_can_see_is_told(self):
        what, _ = only(look("results", make_app(lock_busy="skip", ignore_result=True)), "warn")
        assert "skip" in what

    def test_a_duplicate_without_a_result_is_told(self):
        conf = {"broker_url": ELSEWHERE["broker_url"]}
        _, todo = only(look("results", make_app(conf=conf, lock_from="publish")), "warn")
        assert "lock_duplicate" in todo

    def test_results_that_are_stored_are_fine(self):
        assert is_fine("results", make_app(lock_busy="skip", lock_from="publish"))

    def test_without_a_backend_retrying_tasks_are_fine(self):
        assert is_fine("results", make_app(conf={"broker_url": ELSEWHERE["broker_url"]}))


class TestLeases:
    @pytest.mark.parametrize("ttl", [3600, 0.5])
    def test_one_that_is_too_long_or_too_short_is_told(self, ttl):
        what, todo = only(look("leases", make_app(lock_ttl=ttl)), "warn")
        assert f"{ttl} s" in what
        assert "lock_ttl" in todo

    def test_the_default_is_fine(self):
        assert is_fine("leases", make_app())


class TestLimits:
    @pytest.mark.parametrize("limits", [{}, {"time_limit": 60}])
    def test_a_run_that_may_outlast_its_lock_is_told(self, limits):
        what, _ = only(look("limits", make_app(lock_max_hold=10, **limits)), "warn")
        assert "lock_max_hold" in what

    def test_a_worker_that_limits_it_is_reckoned_with(self):
        worker = SimpleNamespace(time_limit=9, soft_time_limit=None)
        only(look("limits", make_app(lock_max_hold=10), worker=worker), "ok")

    @pytest.mark.parametrize("limits", [{"time_limit": 9}, {"lock_lost": "abort"}])
    def test_a_run_that_ends_with_its_lock_is_fine(self, limits):
        assert is_fine("limits", make_app(lock_max_hold=10, **limits))

    def test_a_wait_that_the_limit_ends_is_told(self):
        conf = {**ELSEWHERE, "task_soft_time_limit": 20}
        what, _ = only(look("limits", make_app(conf=conf, lock_wait=30)), "error")
        assert "lock_wait" in what

    def test_a_wait_within_the_limit_is_fine(self):
        assert is_fine("limits", make_app(lock_wait=30, time_limit=60))


class TestAcks:
    def test_late_acks_that_lose_a_killed_child_are_told(self):
        _, todo = only(look("acks", make_app(acks_late=True)), "warn")
        assert "task_reject_on_worker_lost" in todo

    def test_a_rejection_without_late_acks_is_told(self):
        _, todo = only(look("acks", make_app(reject_on_worker_lost=True)), "warn")
        assert "task_acks_late" in todo

    def test_both_are_fine(self):
        what, _ = only(look("acks", make_app(acks_late=True, reject_on_worker_lost=True)), "ok")
        assert "is made up for" in what

    def test_neither_is_fine_and_what_is_lost_is_said(self):
        what, _ = only(look("acks", make_app()), "ok")
        assert "not made up for" in what


def visible_for(seconds):
    return {**ELSEWHERE, "broker_transport_options": {"visibility_timeout": seconds}}


class TestVisibility:
    def test_the_hour_that_nobody_chose_is_told(self):
        what, _ = only(look("visibility", make_app()), "warn")
        assert "3600 s" in what

    def test_what_nobody_waits_for_is_fine(self):
        assert is_fine("visibility", make_app(lock_busy="fail"))

    @pytest.mark.parametrize("options", [{"lock_ttl": 200}, {"lock_backoff_max": 200}, {"lock_wait": 200}])
    def test_one_that_is_shorter_than_a_wait_is_told(self, options):
        what, todo = only(look("visibility", make_app(conf=visible_for(120), **options)), "warn")
        assert "120 s" in what
        assert "above 200" in todo

    def test_one_that_is_shorter_than_a_run_is_told(self):
        app = make_app(conf=visible_for(120), time_limit=300, acks_late=True)
        _, todo = only(look("visibility", app), "warn")
        assert "above 300" in todo

    def test_a_run_that_is_acknowledged_before_may_be_longer(self):
        assert is_fine("visibility", make_app(conf=visible_for(120), time_limit=300))

    def test_one_that_was_chosen_is_fine(self):
        assert is_fine("visibility", make_app(conf=visible_for(120)))

    def test_other_brokers_have_none(self):
        only(look("visibility", make_app(conf={**ELSEWHERE, "broker_url": "amqp://x"})), "skip")


class TestPrefetch:
    def test_a_worker_that_takes_everything_is_told(self):
        what, _ = only(
            look("prefetch", make_app(conf={**ELSEWHERE, "worker_prefetch_multiplier": 0})), "warn"
        )
        assert "worker_prefetch_multiplier" in what

    def test_the_workers_own_option_counts(self):
        only(look("prefetch", make_app(), worker=SimpleNamespace(prefetch_multiplier=0)), "warn")

    def test_a_worker_that_waiters_may_fill_is_told(self):
        what, _ = only(look("prefetch", make_app(conf={**ELSEWHERE, "worker_eta_task_limit": 5})), "warn")
        assert "worker_eta_task_limit" in what

    def test_room_for_waiters_is_fine(self):
        assert is_fine("prefetch", make_app(conf={**ELSEWHERE, "worker_eta_task_limit": 5000}))

    def test_without_waiters_it_does_not_matter(self):
        only(
            look("prefetch", make_app(conf={**ELSEWHERE, "worker_prefetch_multiplier": 0}, lock_busy="skip")),
            "skip",
        )


QUORUM = {**ELSEWHERE, "broker_url": "amqp://x", "task_default_queue_type": "quorum"}


class TestWaking:
    def test_quorum_queues_are_told(self):
        what, todo = only(look("waking", make_app(conf=QUORUM, lock_backoff_max=7)), "warn")
        assert "7 s" in what
        assert "lock_backoff_max" in todo

    def test_a_celery_that_cannot_wake_is_told(self, monkeypatch):
        """This machine has one Celery; of an older one `why_not` says so."""
        monkeypatch.setattr("celery_rlock.checks.delivery.why_not", lambda *_: "that needs Celery 5.7")
        what, _ = only(look("waking", make_app()), "warn")
        assert "Celery 5.7" in what

    @pytest.mark.skipif(not hasattr(Request, "_eta_timer_entry"), reason="needs Celery 5.7")
    def test_waking_is_fine(self):
        assert waking.why_not(make_app(), "redis") is None
        assert is_fine("waking", make_app())

    def test_who_does_not_wait_needs_no_waking(self):
        assert is_fine("waking", make_app(conf=QUORUM, lock_busy="skip"))
