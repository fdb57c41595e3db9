"""No check of the doctor passes because it could not look: it says so, and why."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from celery_rlock import LockedTask
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.redis_info import check_eviction, check_persistence, check_role, check_version
from celery_rlock.doctor.setup import Setup
from celery_rlock.doctor.workers import check_agreement, check_workers
from tests.cli.doctor_app import ELSEWHERE, add_task, check, make_app, only
from tests.cli.test_doctor_server import app_on
from tests.support.servers import DEFAULT_KIND, Server

#: The checks that look at tasks alone.
OF_TASKS = ("bypass", "keys", "results", "leases", "limits", "acks", "visibility", "prefetch", "waking")


def findings(name, setup):
    return next(one for one in CHECKS if one.name == name).findings(setup)


@pytest.mark.parametrize("name", OF_TASKS)
def test_tasks_that_cannot_be_loaded_are_not_found_to_be_fine(name):
    setup = Setup(make_app(conf={**ELSEWHERE, "broker_transport_options": {"visibility_timeout": 300}}))
    setup.load_error = ImportError("no such module")
    what, todo = only(findings(name, setup), "warn")
    assert "cannot be loaded" in what
    assert todo == "see the check tasks"


@pytest.mark.parametrize("name", OF_TASKS)
def test_an_app_without_locked_tasks_has_nothing_to_check(name):
    app = Celery("examined", set_as_current=False)
    app.conf.update(ELSEWHERE)
    what, _ = only(check(name, app), "skip")
    assert "no task of this app is locked" in what


def test_replicas_are_not_fine_if_the_tasks_cannot_be_loaded(server):
    setup = Setup(app_on(server.url))
    setup.load_error = ImportError("no such module")
    only(findings("replicas", setup), "warn")


def test_a_method_without_code_may_leave_the_lock_out():
    class Compiled(LockedTask):
        abstract = True
        lock_from = "publish"
        apply_async = staticmethod(print)

    what, _ = only(check("bypass", make_app(base=Compiled)), "warn")
    assert "Compiled.apply_async of locked cannot be examined" in what


def test_a_computed_key_is_not_compared():
    app = make_app(lock_key=lambda account_id: f"account:{account_id}", lock_ttl=10)
    assert [finding.level for finding in check("keys", app)] == ["ok"]
    add_task(app, "other", lock_key="account:{account_id}", lock_ttl=60)
    what, _ = only(check("keys", app), "skip")
    assert "lock_key of locked is a callable" in what


def test_an_address_that_cannot_be_read_is_not_compared():
    app = make_app(conf={**ELSEWHERE, "rlock_url": "x://"})
    for name in ("shared", "password"):
        what, todo = only(check(name, app), "warn")
        assert "not valid" in what
        assert todo == "see the check settings"


def test_a_broker_without_a_host_in_its_url_is_not_on_localhost(monkeypatch):
    """Another transport stands in for that of SQS, which needs boto3."""
    monkeypatch.setitem(TRANSPORT_ALIASES, "sqs", "kombu.transport.memory:Transport")
    app = make_app(conf={"broker_url": "sqs://", "rlock_url": "redis://localhost/0"})
    what, _ = only(check("shared", app), "error")
    assert "the broker is on sqs" in what


@pytest.mark.parametrize(
    ("look", "missing"),
    [
        (check_version, "redis_version"),
        (check_role, "role"),
        (check_eviction, "maxmemory_policy"),
        (check_eviction, "maxmemory"),
        (check_persistence, "aof_enabled"),
    ],
)
def test_a_server_whose_info_leaves_the_answer_out(server, look, missing):
    """A proxy or a managed service may do that; INFO is simulated."""
    setup = Setup(app_on(server.url))
    [primary] = setup.primaries
    primary.info = {
        name: value for name, value in primary.info.items() if name not in {missing, "valkey_version"}
    }
    what, _ = only(list(look(setup)), "warn")
    assert f"INFO does not tell {missing}" in what


def test_a_command_that_the_server_does_not_know_is_no_right():
    with Server.start(DEFAULT_KIND, rename_command=("GETDEL", "")) as server:
        what, todo = only(check("rights", app_on(server.url)), "error")
    assert "the server does not know GETDEL" in what
    assert "rename-command" in todo


class WithoutInfo(redis.Redis):
    """A client of a server that does not know INFO."""

    def execute_command(self, *args, **options):
        if args[0] == "INFO":
            raise redis.ResponseError("unknown command 'INFO', with args beginning with:")
        return super().execute_command(*args, **options)


def test_a_server_without_info_is_told(server):
    app = app_on(server.url)
    app.conf.rlock_client = lambda: WithoutInfo(port=server.port)
    for name in ("rights", "version", "role", "eviction", "persistence"):
        what, _ = only(check(name, app), "warn")
        assert "INFO" in what


def test_a_primary_that_refuses_to_answer_does_not_hide_the_problem_of_another(cluster):
    """Whichever of the two is looked at first."""
    app = app_on(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    for silent, bad in (cluster, cluster[::-1]):
        setup = Setup(app)
        [one] = [primary for primary in setup.primaries if primary.address.endswith(str(silent.port))]
        one.info = {}
        bad.client().config_set("maxmemory", "100mb")
        bad.client().config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = {finding.level: finding.what for finding in check_eviction(setup)}
        finally:
            bad.client().config_set("maxmemory-policy", "noeviction")
        assert found.keys() == {"warn", "error"}
        assert str(bad.port) in found["error"]


def test_a_cluster_without_slots_has_no_primary_to_look_at(server):
    setup = Setup(app_on(server.url))
    setup._primaries = []
    assert {findings(one.name, setup)[0].level for one in CHECKS if one.asks == "server"} <= {"warn", "error"}


def test_a_broker_without_remote_control_is_told(server, monkeypatch):
    """SQS, for example, has no fanout."""

    def no_fanout(*_, **__):
        raise NotImplementedError("fanout")

    app = make_app(conf={"broker_url": server.url, "result_backend": server.url})
    monkeypatch.setattr(type(app.control), "broadcast", no_fanout)
    for name in ("workers", "agreement"):
        what, _ = only(check(name, app), "warn")
        assert "NotImplementedError: fanout" in what


class OneRefuses(Setup):
    """Of two workers, one answers with an error, as it does when remote control fails in it."""

    def ask(self, command):
        conf = self.app.conf.table() if command == "conf" else {"pid": 1}
        return [("fine@test", conf), ("odd@test", {"error": "KeyError()"})]


def test_a_worker_that_does_not_tell_its_settings_is_not_counted_as_equal():
    warned, fine = check_agreement(OneRefuses(make_app()))
    assert (warned.level, fine.level) == ("warn", "ok")
    assert "odd@test did not tell its settings" in warned.what
    assert "all that answered (1)" in fine.what
    assert [finding.level for finding in check_workers(OneRefuses(make_app()))] == ["ok"]
