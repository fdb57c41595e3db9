"""Real servers in a bad state: each check finds its problem, and is quiet without it."""

from __future__ import annotations

import re
import uuid
from functools import partial

import pytest
import redis

from celery_rlock.checks.catalogue import CHECKS
from celery_rlock.checks.clock import Sample, judge
from celery_rlock.checks.connection import look_at_connection
from celery_rlock.checks.cycle import look_at_scripts
from celery_rlock.checks.rights import NEEDED
from celery_rlock.checks.server import look_at_version
from celery_rlock.checks.setup import Setup
from celery_rlock.core.replies import Taken
from tests.conftest import DEFAULT_KIND
from tests.ops.clinic import add_task, is_fine, look, make_app, only
from tests.support.daemon import ROOT
from tests.support.processes import free_port, wait_until
from tests.support.servers import Server

ON_SERVER = [check.name for check in CHECKS if check.asks == "server"]


def app_on(url, **options):
    """Its locks are there."""
    return make_app(conf={"rlock_url": url, "broker_url": "memory://"}, **options)


@pytest.fixture(autouse=True)
def loaded_machine(monkeypatch):
    """A machine that other tests use is not slow for that."""
    monkeypatch.setattr("celery_rlock.checks.cycle._SLOW_MS", 1000)


@pytest.fixture
def app(server):
    return app_on(server.url)


@pytest.fixture(scope="module")
def primary():
    """A primary with a replica."""
    with Server.start(DEFAULT_KIND, repl_diskless_sync_delay=0) as server:
        yield server


@pytest.fixture(scope="module")
def replica(primary):
    with Server.start(DEFAULT_KIND, replicaof=("127.0.0.1", primary.port)) as server:
        wait_until(lambda: primary.client().info()["connected_slaves"], what="the replica at its primary")
        wait_until(
            lambda: server.client().info()["master_link_status"] == "up", what="the link to the primary"
        )
        yield server


@pytest.fixture
def with_replica(primary, replica):
    return app_on(primary.url)


def test_a_good_server_is_fine_on_every_kind(each_server):
    """Even the probe's keys are gone afterwards."""
    app = app_on(each_server.url)
    levels = {check: {finding.level for finding in look(check, app)} for check in ON_SERVER}
    assert {check for check in levels if levels[check] != {"ok"}} == {"persistence", "replicas"}
    assert levels["persistence"] == {"warn"}
    assert levels["replicas"] == {"skip"}
    assert each_server.client().keys() == []


@pytest.mark.parametrize("options", [{"protocol": 3}, {"decode_responses": True}])
def test_a_client_of_ones_own_is_served(server, options):
    app = make_app(conf={"broker_url": "memory://"})
    app.conf.rlock_client = lambda: redis.Redis(port=server.port, **options)
    for check in ON_SERVER:
        assert {finding.level for finding in look(check, app)} <= {"ok", "warn", "skip"}, check
    assert is_fine("scripts", app)
    assert is_fine("rights", app)


class TestConnection:
    def test_a_server_that_is_down_is_told_and_nothing_else_is_asked(self):
        app = app_on(f"redis://user:secret@127.0.0.1:{free_port()}/0")
        what, todo = only(look("connection", app), "error")
        assert "refused" in what
        assert "secret" not in what
        assert "rlock_url" in todo
        for check in ON_SERVER[1:]:
            what, _ = only(look(check, app), "skip")
            assert "no connection" in what

    def test_a_server_that_is_silent_is_told(self, proxy):
        proxy.freeze()
        what, _ = only(look("connection", app_on(proxy.url + "?socket_timeout=0.2")), "error")
        assert "Timeout" in what

    def test_a_client_of_ones_own_that_never_gives_up_is_told(self, proxy):
        proxy.freeze()
        app = make_app(conf={"broker_url": "memory://"})
        app.conf.rlock_client = lambda: redis.Redis(port=proxy.port, socket_timeout=None)
        what, _ = only(list(look_at_connection(Setup(app, timeout=0.1))), "error")
        assert "no answer within" in what

    def test_a_client_of_ones_own_that_fails_is_told(self):
        app = make_app(
            conf={"rlock_client": "tests.ops.test_doctor_server:failing", "broker_url": "memory://"}
        )
        what, _ = only(look("connection", app), "error")
        assert "no such host" in what

    def test_locks_that_are_switched_off_ask_no_server(self):
        app = make_app(conf={"rlock_enabled": False, "broker_url": "memory://"})
        for check in ON_SERVER:
            only(look(check, app), "skip")

    def test_a_server_that_answers_is_fine(self, app):
        assert is_fine("connection", app)


def failing():
    raise OSError("no such host")


class TestVersion:
    """No such old server runs on this machine: what it says of itself is made up."""

    @pytest.mark.parametrize(
        "info",
        [
            {"redis_version": "6.0.16"},
            {"redis_version": "7.2.4", "valkey_version": "7.2.8"},
            {"redis_version": "5.0"},
        ],
    )
    def test_an_old_server_is_told(self, app, info):
        setup = Setup(app)
        setup.primaries[0].info = info
        _, todo = only(list(look_at_version(setup)), "error")
        assert "upgrade" in todo

    @pytest.mark.parametrize(
        "info", [{"redis_version": "6.2.0"}, {"redis_version": "7.2.4", "valkey_version": "8.0.1"}]
    )
    def test_the_oldest_that_will_do_is_fine(self, app, info):
        setup = Setup(app)
        setup.primaries[0].info = info
        only(list(look_at_version(setup)), "ok")


class TestRole:
    def test_a_replica_is_told(self, primary, replica):
        what, _ = only(look("role", app_on(replica.url)), "error")
        assert f"127.0.0.1:{primary.port}" in what

    def test_the_scripts_do_not_run_on_it(self, replica):
        what, _ = only(look("scripts", app_on(replica.url)), "error")
        assert "READONLY" in what or "read only" in what.lower()

    def test_a_primary_is_fine(self, app):
        assert is_fine("role", app)


#: The least rights of a lock, and what those who look need in addition.
LEAST = ("-@all", "~rlock:*", "&rlock:*", "+client|setname", *(f"+{command.lower()}" for command in NEEDED))
ALL = (*LEAST, "+info", "+scan", "+hgetall")


@pytest.fixture
def user(each_server):
    """Makes a user of the lock, with these rules; and an app that is it."""
    admin = each_server.client()
    name = f"user-{uuid.uuid4().hex}"  # a process has one client for each URL: another name, another client

    def make(*rules):
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rules)
        app = app_on(f"redis://{name}:secret@127.0.0.1:{each_server.port}/0")
        app.user = name
        return app

    yield make
    admin.acl_deluser(name)


class TestRights:
    def test_the_table_has_every_command_of_the_scripts(self):
        scripts = "".join(path.read_text() for path in (ROOT / "lua").glob("*.lua"))
        assert set(re.findall(r"redis\.call\(\s*'(\w+)'", scripts)) <= set(NEEDED)

    def test_least_rights_are_fine_and_enough_for_the_scripts(self, user):
        app = user(*ALL)
        assert is_fine("rights", app)
        assert is_fine("scripts", app)

    @pytest.mark.parametrize("command", NEEDED)
    def test_each_command_that_is_missing_is_named(self, user, command):
        app = user(*ALL, f"-{command.lower()}")
        what, todo = only(look("rights", app), "error")
        assert re.search(rf"is refused {command}: ", what)
        assert todo == f"ACL SETUSER {app.user} +{command.lower()}"

    def test_several_that_are_missing_are_named_together(self, user):
        _, todo = only(look("rights", user(*ALL, "-hset", "-zadd")), "error")
        assert todo.endswith(" +hset +zadd")

    def test_a_missing_key_pattern_is_named(self, user):
        rules = [rule for rule in ALL if rule != "~rlock:*"]
        _, todo = only(look("rights", user(*rules, "~cache:*")), "error")
        assert todo.endswith(" ~rlock:*")

    def test_a_missing_channel_pattern_is_named(self, user):
        rules = [rule for rule in ALL if rule != "&rlock:*"]
        what, todo = only(look("rights", user(*rules)), "error")
        assert "PUBLISH, SUBSCRIBE" in what
        assert todo.endswith(" &rlock:wake:*")

    def test_what_replicas_need_is_needed_where_they_are(self, user):
        app = user(*ALL)
        assert is_fine("rights", app)
        add_task(app, "replicated", lock_replicas=1)
        _, todo = only(look("rights", app), "error")
        assert todo.endswith(" +wait")

    def test_what_only_people_need_is_a_warning_and_the_rest_is_not_checked(self, user):
        app = user(*LEAST)
        what, todo = only(look("rights", app), "warn")
        assert "INFO, SCAN, HGETALL" in what
        assert todo == f"ACL SETUSER {app.user} +hgetall +info +scan"
        for check in ("eviction", "persistence", "role", "version"):
            what, _ = only(look(check, app), "skip")
            assert "INFO" in what

    def test_a_user_who_may_not_even_connect_is_told(self, user):
        _, todo = only(look("connection", user(*ALL, "-client|setname")), "error")
        assert "+client|setname" in todo

    def test_a_wrong_password_is_told(self, user, each_server):
        name = user(*ALL).user
        app = app_on(f"redis://{name}:wrong@127.0.0.1:{each_server.port}/0")
        _, todo = only(look("connection", app), "error")
        assert "password" in todo


class TestScripts:
    @pytest.mark.parametrize("command", ["evalsha", "hset", "zadd", "publish", "subscribe"])
    def test_one_that_cannot_run_is_told(self, user, command):
        what, todo = only(look("scripts", user(*ALL, f"-{command}")), "error")
        assert "do not run" in what
        assert "rights" in todo

    def test_a_server_that_forgets_at_once_is_told(self, server):
        """A lease that is over when it is looked at again, as where every key is evicted."""
        app = app_on(server.url)
        setup = Setup(app)
        setup.scripts.acquire = lambda *_: Taken(1)
        what = [finding.what for finding in look_at_scripts(setup)]
        assert any("given to somebody else" in text for text in what)
        assert any("could not be renewed" in text for text in what)


class TestLatency:
    def test_it_is_measured(self, app):
        what, _ = only(look("latency", app), "ok")
        assert re.search(r"[\d.]+ ms \(p50\), [\d.]+ ms \(p99\)", what)

    def test_a_lease_that_is_as_short_as_an_answer_is_told(self, server):
        _, todo = only(look("latency", app_on(server.url, lock_ttl=0.0005)), "warn")
        assert "lock_ttl" in todo

    def test_one_that_every_task_feels_is_told(self, app, monkeypatch):
        monkeypatch.setattr("celery_rlock.checks.cycle._SLOW_MS", 0.001)
        what, _ = only(look("latency", app), "warn")
        assert "each task pays" in what


class Ahead(redis.Redis):
    """A client whose server's clock is two minutes ahead."""

    def time(self):
        seconds, micros = super().time()
        return seconds + 120, micros


def samples(*servers):
    """Taken a second apart, each answered within 10 ms."""
    return [Sample(server, 1000.0 + i, i, i + 0.01) for i, server in enumerate(servers)]


class TestClock:
    def test_one_that_is_wrong_is_told(self, server):
        app = app_on(server.url)
        app.conf.rlock_client = lambda: Ahead(port=server.port)
        what, _ = only(look("clock", app), "warn")
        assert "120.0 s ahead" in what

    @pytest.mark.parametrize("servers", [(1000, 1001, 997), (1000, 1001, 1007)])
    def test_one_that_jumps_is_told(self, servers):
        what, _ = only(list(judge(samples(*servers))), "error")
        assert "jumps" in what

    def test_a_slow_answer_is_no_jump(self):
        slow = [Sample(1000, 1000, 0, 0.01), Sample(1003.9, 1002.5, 1, 4)]
        only(list(judge(slow)), "ok")

    def test_one_that_is_right_is_fine(self, app):
        assert is_fine("clock", app)


class TestEviction:
    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_a_server_that_may_drop_locks_is_told(self, server, app, configured, policy):
        configured(maxmemory="100mb", maxmemory_policy=policy)
        what, todo = only(look("eviction", app), "error")
        assert policy in what
        assert "noeviction" in todo

    def test_a_server_that_is_nearly_full_is_told(self, server, app, configured):
        configured(maxmemory=int(server.client().info("memory")["used_memory"] * 1.02))
        what, _ = only(look("eviction", app), "warn")
        assert "of maxmemory" in what

    @pytest.mark.parametrize("settings", [{"maxmemory": "100mb"}, {"maxmemory_policy": "allkeys-lru"}])
    def test_a_server_that_drops_nothing_is_fine(self, app, configured, settings):
        configured(**settings)
        assert is_fine("eviction", app)


@pytest.fixture
def configured(server):
    """Configures the server until the end of the test."""

    def configure(**settings):
        for name, value in settings.items():
            server.client().config_set(name.replace("_", "-"), value)

    yield configure
    configure(maxmemory=0, maxmemory_policy="noeviction", appendonly="no")


class TestPersistence:
    def test_what_a_restart_forgets_is_told(self, app):
        what, todo = only(look("persistence", app), "warn")
        assert "replicas" not in what
        assert "appendonly yes" in todo

    def test_with_replicas_that_are_emptied(self, with_replica):
        what, _ = only(look("persistence", with_replica), "warn")
        assert "empties its replicas" in what

    def test_an_appendonly_file_is_fine(self, server, app, configured):
        configured(appendonly="yes")
        assert is_fine("persistence", app)


class TestReplicas:
    def test_fewer_than_lock_replicas_are_told(self, primary, replica):
        what, _ = only(look("replicas", app_on(primary.url, lock_replicas=2)), "error")
        assert "1 replicas" in what

    def test_as_many_are_fine(self, primary, replica):
        app = app_on(primary.url, lock_replicas=1)
        wait_until(lambda: is_fine("replicas", app), what="the replica to be online")


@pytest.fixture(scope="module")
def cluster():
    """Three primaries; the port of their bus is chosen, for the default may be taken by anybody."""
    buses = [free_port() for _ in range(3)]
    nodes = []
    try:
        for number, bus in enumerate(buses):
            node = Server.start(DEFAULT_KIND, cluster_enabled="yes", cluster_port=bus)
            nodes.append(node)
            run = partial(node.client().execute_command, "CLUSTER")
            run("ADDSLOTSRANGE", number * 5500, min(16384, (number + 1) * 5500) - 1)
            run("SET-CONFIG-EPOCH", number + 1)
            if number:
                run("MEET", "127.0.0.1", nodes[0].port, buses[0])
        wait_until(lambda: all(map(is_whole, nodes)), timeout=30, what="the cluster")
        yield nodes
    finally:
        for node in nodes:
            node.stop()


def is_whole(node):
    return b"cluster_state:ok" in node.client().execute_command("CLUSTER", "INFO")


@pytest.fixture
def on_cluster(cluster):
    return app_on(f"redis+cluster://127.0.0.1:{cluster[0].port}")


class TestCluster:
    @pytest.mark.parametrize(
        "check", ["connection", "version", "role", "rights", "scripts", "latency", "eviction"]
    )
    def test_each_primary_is_looked_at(self, on_cluster, cluster, check):
        found = look(check, on_cluster)
        assert {finding.level for finding in found} == {"ok"}
        for node in cluster:
            assert any(f"127.0.0.1:{node.port}" in finding.what for finding in found)

    def test_the_primary_that_may_drop_locks_is_named(self, on_cluster, cluster):
        bad = cluster[1]
        bad.client().config_set("maxmemory", "100mb")
        bad.client().config_set("maxmemory-policy", "allkeys-lru")
        try:
            [wrong] = [finding for finding in look("eviction", on_cluster) if finding.level == "error"]
        finally:
            bad.client().config_set("maxmemory-policy", "noeviction")
        assert f"127.0.0.1:{bad.port}" in wrong.what
