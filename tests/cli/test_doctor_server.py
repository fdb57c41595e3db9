"""The doctor's checks of the lock server: each finds its problem on a real server, and nothing without it."""

from __future__ import annotations

import re
import threading
import uuid

import pytest
import redis

from celery_rlock.core.lock import ReentrantLock
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.redis_info import check_connection, check_version
from celery_rlock.doctor.rights import NEEDED, NEEDED_BY_OPERATORS
from celery_rlock.doctor.round_trip import check_scripts
from celery_rlock.doctor.setup import Setup
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer, Renewal
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Place, Release, Taken
from tests.cli import commands_app
from tests.cli.doctor_app import add_task, check, is_fine, make_app, only
from tests.cli.run_commands import Locks, run
from tests.support.daemon import ROOT
from tests.support.processes import free_port, wait_until
from tests.support.servers import DEFAULT_KIND, Server

ON_SERVER = [one.name for one in CHECKS if one.asks == "server"]


def app_on(url, **options):
    """An app whose locks are on this server."""
    return make_app(conf={"rlock_url": url, "broker_url": "memory://"}, **options)


@pytest.fixture(autouse=True)
def loaded_machine(monkeypatch):
    """On a loaded machine, every answer is slow: do not warn of that."""
    monkeypatch.setattr("celery_rlock.doctor.round_trip._SLOW_MS", 1000)


@pytest.fixture
def app(server):
    return app_on(server.url)


@pytest.fixture(scope="module")
def primary():
    """A primary; `replica` follows it."""
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


def test_every_kind_of_server_is_fine(each_server):
    """Afterwards the doctor's own key is deleted."""
    app = app_on(each_server.url)
    levels = {name: {finding.level for finding in check(name, app)} for name in ON_SERVER}
    assert {name for name in levels if levels[name] != {"ok"}} == {"persistence", "replicas"}
    assert levels["persistence"] == {"warn"}
    assert levels["replicas"] == {"skip"}
    assert each_server.client().keys() == []


@pytest.mark.parametrize("options", [{"protocol": 3}, {"decode_responses": True}])
def test_a_users_own_client_works(server, options):
    app = make_app(conf={"broker_url": "memory://"})
    app.conf.rlock_client = lambda: redis.Redis(port=server.port, **options)
    for name in ON_SERVER:
        assert {finding.level for finding in check(name, app)} <= {"ok", "warn", "skip"}, name
    assert is_fine("scripts", app)
    assert is_fine("rights", app)


class TestConnection:
    def test_a_server_that_is_down_is_an_error_and_nothing_else_is_checked(self):
        app = app_on(f"redis://user:secret@127.0.0.1:{free_port()}/0")
        what, todo = only(check("connection", app), "error")
        assert "refused" in what
        assert "secret" not in what
        assert "rlock_url" in todo
        for name in ON_SERVER[1:]:
            what, _ = only(check(name, app), "warn")
            assert "no connection" in what

    def test_a_server_that_does_not_answer_is_an_error(self, proxy):
        proxy.freeze()
        what, _ = only(check("connection", app_on(proxy.url + "?socket_timeout=0.2")), "error")
        assert "Timeout" in what

    def test_a_users_own_client_without_a_timeout_is_not_waited_for(self, proxy):
        proxy.freeze()
        app = make_app(conf={"broker_url": "memory://"})
        app.conf.rlock_client = lambda: redis.Redis(port=proxy.port, socket_timeout=None)
        what, _ = only(list(check_connection(Setup(app, timeout=0.1))), "error")
        assert "no answer within" in what

    def test_a_users_own_client_that_raises_is_an_error(self):
        app = make_app(
            conf={"rlock_client": "tests.cli.test_doctor_server:failing", "broker_url": "memory://"}
        )
        what, _ = only(check("connection", app), "error")
        assert "no such host" in what

    def test_with_disabled_locking_no_server_is_asked(self):
        app = make_app(conf={"rlock_enabled": False, "broker_url": "memory://"})
        for name in ON_SERVER:
            only(check(name, app), "skip")

    def test_a_server_that_answers_is_fine(self, app):
        assert is_fine("connection", app)


def failing():
    raise OSError("no such host")


class TestVersion:
    """INFO is simulated, because no such old server is installed here."""

    @pytest.mark.parametrize(
        "info",
        [
            {"redis_version": "6.0.16"},
            {"redis_version": "7.2.4", "valkey_version": "7.2.8"},
            {"redis_version": "5.0"},
        ],
    )
    def test_an_old_server_is_an_error(self, app, info):
        setup = Setup(app)
        setup.primaries[0].info = info
        _, todo = only(list(check_version(setup)), "error")
        assert "upgrade" in todo

    @pytest.mark.parametrize(
        "info", [{"redis_version": "6.2.0"}, {"redis_version": "7.2.4", "valkey_version": "8.0.1"}]
    )
    def test_the_oldest_supported_server_is_fine(self, app, info):
        setup = Setup(app)
        setup.primaries[0].info = info
        only(list(check_version(setup)), "ok")


class TestRole:
    def test_a_replica_is_an_error(self, primary, replica):
        what, _ = only(check("role", app_on(replica.url)), "error")
        assert f"127.0.0.1:{primary.port}" in what

    def test_the_scripts_do_not_run_on_a_replica(self, replica):
        what, _ = only(check("scripts", app_on(replica.url)), "error")
        assert "READONLY" in what or "read only" in what.lower()

    def test_a_primary_is_fine(self, app):
        assert is_fine("role", app)


#: The least rights of a lock, and the further ones of operators.
LEAST = ("-@all", "~rlock:*", "&rlock:*", "+client|setname", *(f"+{command.lower()}" for command in NEEDED))
ALL = (*LEAST, *(f"+{command.lower()}" for command in NEEDED_BY_OPERATORS))


@pytest.fixture
def user(each_server):
    """Creates a Redis user with the given rules, and an app that logs in as this user."""
    admin = each_server.client()
    name = f"user-{uuid.uuid4().hex}"  # a process has one client for each URL, so each test needs a new name

    def make(*rules):
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rules)
        app = app_on(f"redis://{name}:secret@127.0.0.1:{each_server.port}/0")
        app.user = name
        return app

    yield make
    admin.acl_deluser(name)


#: What redis-py and this test send besides.
NOT_COUNTED = {"CLIENT", "CONFIG", "HELLO", "PING", "SCRIPT", "UNSUBSCRIBE"}


def commands_of(server, do):
    """The commands that the server runs for `do`, those inside of scripts included."""
    client = server.client()
    client.config_resetstat()
    do()
    names = {name.removeprefix("cmdstat_").upper() for name in client.info("commandstats")}
    return {name.partition("|")[0] for name in names} - NOT_COUNTED


def use_every_verb(url):
    """Take, renew, wait for and release locks, with and without the scripts in the server's cache."""
    # A client of its own, because the one of the plain URL may already be subscribed.
    verbs = RedisLockServer(connect(f"{url}?socket_timeout=1.5"))
    verbs.client.script_flush()
    key, owner = verbs.redis_keys("key"), Owner("worker@test", "d1", "id-1")
    taken = verbs.acquire(key, owner, 1, 60, "task")
    verbs.renew([Renewal(key, owner, taken.token, 60)])
    assert verbs.locked(key)
    assert verbs.token(key, owner) == taken.token
    place = Place(key, "listener:d2:id-2", 0, 60)
    verbs.wait([place])
    verbs.pass_on(place._replace(since=1))
    verbs.give_up(place)
    verbs.redelivery(key, owner)
    verbs.mark_ended(key, owner._replace(task_id="id-0"))
    verbs.mark_unacked(key, owner)
    verbs.mark_acked(key, owner)
    waiter = threading.Thread(target=take_and_release, args=(verbs,))
    waiter.start()
    wait_until(lambda: verbs.client.exists(key.waiters), what="the waiter")
    verbs.release(key, owner, Release(ended=True))
    waiter.join(20)
    assert not waiter.is_alive()


def take_and_release(lock_server):
    with ReentrantLock("key", lock_server=lock_server):
        pass


class TestRights:
    def test_the_table_has_exactly_the_commands_that_locks_use(self, each_server):
        scripts = "".join(path.read_text() for path in (ROOT / "lua").glob("*.lua"))
        in_scripts = set(re.findall(r"redis\.call\(\s*'(\w+)'", scripts))
        sent = commands_of(each_server, lambda: use_every_verb(each_server.url))
        assert in_scripts | sent == set(NEEDED)

    def test_the_table_has_exactly_the_further_commands_that_operators_use(self, server):
        app, locks = commands_app.make_app(server.url), Locks(server.url)
        locks.hold("account:7")
        locks.add_waiters("account:7", "id-2")

        def use_commands():
            assert run(app, "ls").exit_code == 0
            assert run(app, "show", "account:7", "--timeout", "0").exit_code == 0
            assert run(app, "explain", "charge", "7", "--timeout", "0").exit_code == 1
            check("eviction", app)

        assert commands_of(server, use_commands) - set(NEEDED) == set(NEEDED_BY_OPERATORS)

    def test_the_least_rights_are_fine_and_enough_for_the_scripts(self, user):
        app = user(*ALL)
        assert is_fine("rights", app)
        assert is_fine("scripts", app)

    @pytest.mark.parametrize("command", NEEDED)
    def test_each_missing_command_is_named(self, user, command):
        app = user(*ALL, f"-{command.lower()}")
        what, todo = only(check("rights", app), "error")
        assert re.search(rf"is refused {command}: ", what)
        assert todo == f"ACL SETUSER {app.user} +{command.lower()}"

    def test_several_missing_commands_are_named_together(self, user):
        _, todo = only(check("rights", user(*ALL, "-hset", "-zadd")), "error")
        assert todo.endswith(" +hset +zadd")

    def test_a_missing_key_pattern_is_named(self, user):
        rules = [rule for rule in ALL if rule != "~rlock:*"]
        _, todo = only(check("rights", user(*rules, "~cache:*")), "error")
        assert todo.endswith(" ~rlock:*")

    def test_a_missing_channel_pattern_is_named(self, user):
        rules = [rule for rule in ALL if rule != "&rlock:*"]
        what, todo = only(check("rights", user(*rules)), "error")
        assert "PUBLISH, SUBSCRIBE" in what
        assert todo.endswith(" &rlock:wake:*")

    def test_lock_replicas_needs_one_more_command(self, user):
        app = user(*ALL)
        assert is_fine("rights", app)
        add_task(app, "replicated", lock_replicas=1)
        _, todo = only(check("rights", app), "error")
        assert todo.endswith(" +wait")

    def test_a_user_that_may_not_look_at_all_locks_is_fine_for_a_worker(self, user):
        app = user(*LEAST, "+info")
        [finding] = check("rights", app)
        assert finding.level == "ok"
        assert (
            "but not DBSIZE, SCAN, HSCAN, ZCARD, PUBSUB: celery rlock ls needs another user" in finding.what
        )

    def test_without_info_there_is_a_warning_and_what_needs_it_is_not_checked(self, user):
        app = user(*LEAST)
        what, todo = only(check("rights", app), "warn")
        assert "INFO, DBSIZE, SCAN, HSCAN, ZCARD, PUBSUB" in what
        assert todo == f"ACL SETUSER {app.user} +info"
        for name in ("eviction", "persistence", "role", "version"):
            what, _ = only(check(name, app), "warn")
            assert "INFO" in what

    def test_a_password_in_the_url_is_a_warning_that_does_not_show_it(self, each_server):
        url = f"rediss://u:geheim@127.0.0.1:{each_server.port}/0?ssl_password=geheim"
        found = check("password", app_on(url))
        assert [finding.level for finding in found] == ["warn", "warn"]
        assert [finding.todo.split()[5] for finding in found] == ["rlock_password,", "rlock_ssl_password,"]
        assert "geheim" not in str(found)
        assert is_fine("password", app_on(each_server.url))
        what, _ = only(check("password", app_on("redis:/u:geheim@h")), "warn")
        assert "geheim" not in what

    def test_a_user_who_may_not_connect_is_an_error(self, user):
        _, todo = only(check("connection", user(*ALL, "-client|setname")), "error")
        assert "+client|setname" in todo

    def test_a_wrong_password_is_an_error(self, user, each_server):
        name = user(*ALL).user
        app = app_on(f"redis://{name}:wrong@127.0.0.1:{each_server.port}/0")
        _, todo = only(check("connection", app), "error")
        assert "password" in todo


class TestScripts:
    @pytest.mark.parametrize("command", ["evalsha", "hset", "zadd", "publish", "subscribe"])
    def test_a_script_that_cannot_run_is_an_error(self, user, command):
        what, todo = only(check("scripts", user(*ALL, f"-{command}")), "error")
        assert "do not run" in what
        assert "rights" in todo

    def test_a_server_that_forgets_at_once_is_an_error(self, server):
        """Every acquire succeeds and no lock stays, as on a server that evicts every key."""
        app = app_on(server.url)
        setup = Setup(app)
        setup.lock_server.acquire = lambda *_, **__: Taken(1)
        what = [finding.what for finding in check_scripts(setup)]
        assert any("given to another owner" in text for text in what)
        assert any("could not be renewed" in text for text in what)


class TestLatency:
    def test_the_latency_is_measured(self, app):
        what, _ = only(check("latency", app), "ok")
        assert re.search(r"[\d.]+ ms \(p50\), [\d.]+ ms \(p99\)", what)

    def test_a_lease_as_short_as_an_answer_is_a_warning(self, server):
        _, todo = only(check("latency", app_on(server.url, lock_ttl=0.0005)), "warn")
        assert "lock_ttl" in todo

    def test_a_slow_server_is_a_warning(self, app, monkeypatch):
        monkeypatch.setattr("celery_rlock.doctor.round_trip._SLOW_MS", 0.001)
        what, _ = only(check("latency", app), "warn")
        assert "each task needs one of each" in what


class Ahead(redis.Redis):
    """A client of a server whose clock is two minutes ahead."""

    def time(self):
        seconds, micros = super().time()
        return seconds + 120, micros


class TestClock:
    def test_a_wrong_clock_is_a_warning(self, server):
        app = app_on(server.url)
        app.conf.rlock_client = lambda: Ahead(port=server.port)
        what, _ = only(check("clock", app), "warn")
        assert "120.0 s ahead" in what

    def test_the_right_time_is_fine(self, app):
        assert is_fine("clock", app)


class TestEviction:
    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_a_server_that_may_evict_locks_is_an_error(self, server, app, configured, policy):
        configured(maxmemory="100mb", maxmemory_policy=policy)
        what, todo = only(check("eviction", app), "error")
        assert policy in what
        assert "noeviction" in todo

    def test_a_server_that_is_nearly_full_is_a_warning(self, server, app, configured):
        configured(maxmemory=int(server.client().info("memory")["used_memory"] * 1.02))
        what, _ = only(check("eviction", app), "warn")
        assert "of maxmemory" in what

    @pytest.mark.parametrize("settings", [{"maxmemory": "100mb"}, {"maxmemory_policy": "allkeys-lru"}])
    def test_a_server_that_evicts_nothing_is_fine(self, app, configured, settings):
        configured(**settings)
        assert is_fine("eviction", app)


@pytest.fixture
def configured(server):
    """Changes the server's configuration until the end of the test."""

    def configure(**settings):
        for name, value in settings.items():
            server.client().config_set(name.replace("_", "-"), value)

    yield configure
    configure(maxmemory=0, maxmemory_policy="noeviction", appendonly="no")


class TestPersistence:
    def test_a_server_without_appendonly_file_is_a_warning(self, app):
        what, todo = only(check("persistence", app), "warn")
        assert "replicas" not in what
        assert "appendonly yes" in todo

    def test_the_warning_says_that_a_restart_empties_the_replicas(self, with_replica):
        what, _ = only(check("persistence", with_replica), "warn")
        assert "empties its replicas" in what

    def test_an_appendonly_file_is_fine(self, server, app, configured):
        configured(appendonly="yes")
        assert is_fine("persistence", app)


class TestReplicas:
    def test_fewer_replicas_than_lock_replicas_is_an_error(self, primary, replica):
        what, _ = only(check("replicas", app_on(primary.url, lock_replicas=2)), "error")
        assert "connected replicas: 1" in what

    def test_enough_replicas_are_fine(self, primary, replica):
        app = app_on(primary.url, lock_replicas=1)
        wait_until(lambda: is_fine("replicas", app), what="the replica to be online")


@pytest.fixture
def on_cluster(cluster):
    return app_on(f"redis+cluster://127.0.0.1:{cluster[0].port}")


class TestCluster:
    @pytest.mark.parametrize(
        "name", ["connection", "version", "role", "rights", "scripts", "latency", "eviction"]
    )
    def test_every_primary_is_checked(self, on_cluster, cluster, name):
        found = check(name, on_cluster)
        assert {finding.level for finding in found} == {"ok"}
        for node in cluster:
            assert any(f"127.0.0.1:{node.port}" in finding.what for finding in found)

    def test_the_primary_that_may_evict_locks_is_named(self, on_cluster, cluster):
        bad = cluster[1]
        bad.client().config_set("maxmemory", "100mb")
        bad.client().config_set("maxmemory-policy", "allkeys-lru")
        try:
            [wrong] = [finding for finding in check("eviction", on_cluster) if finding.level == "error"]
        finally:
            bad.client().config_set("maxmemory-policy", "noeviction")
        assert f"127.0.0.1:{bad.port}" in wrong.what
