"""The users of docs/security.md can use the lock, and can do nothing else."""

from __future__ import annotations

import pytest
from celery import Celery
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from celery_rlock import LockStatus, LockUnavailable
from celery_rlock.core.lock import ReentrantLock
from celery_rlock.doctor.catalogue import CHECKS
from celery_rlock.doctor.rights import NEEDED
from celery_rlock.doctor.setup import Setup
from celery_rlock.server.client import connect
from celery_rlock.server.inventory import Inventory
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.redis_keys import RedisKeys
from tests.faults import verbs
from tests.faults.server import acl
from tests.support.servers import Server


@pytest.fixture(scope="module")
def server(kind):
    with Server.start(kind) as server:
        yield server


@pytest.fixture
def as_user(server):
    """The lock server's verbs as a new user of the page. The server has no script loaded."""

    def log_in(*more, without=(), prefix="rlock:", database=0):
        user = acl.make_user(server, *more, without=without)
        with server.client() as client:
            client.script_flush()
        lock_server = RedisLockServer(
            connect(f"{acl.login(server, user).removesuffix('/0')}/{database}"), prefix
        )
        lock_server.user = user
        return lock_server

    return log_in


@pytest.fixture
def doctor_says(server):
    """The level of the doctor's finding for a user of the page with `more` rules."""

    def level(*more):
        url = acl.login(server, acl.make_user(server, *more))
        with Celery("proj", set_as_current=False) as app:
            app.conf.rlock_url = url
            [check] = [check for check in CHECKS if check.name == "rights"]
            [finding] = check.findings(Setup(app))
        return finding.level

    return level


def test_the_user_can_use_every_verb(as_user, server):
    lock_server = as_user()
    verbs.use_all(lock_server)
    assert acl.refused(server, lock_server.user) == set()


@pytest.mark.parametrize(
    "command",
    [
        # Without SUBSCRIBE the lock waits three seconds for the subscription.
        pytest.param(command, marks=pytest.mark.slow if command == "subscribe" else ())
        for command in acl.commands("worker")
    ],
)
def test_the_user_needs_every_one_of_its_commands(as_user, server, command):
    lock_server = as_user(without=[command])
    with pytest.raises((LockUnavailable, RedisError, AssertionError)):
        verbs.use_all(lock_server)
    assert acl.refused(server, lock_server.user) == {command}


def test_a_user_who_asks_with_lock_of_needs_two_more_commands(as_user, server):
    for more in ([], *([f"+{command}"] for command in acl.commands("lock_of"))):
        with pytest.raises(LockUnavailable, match="NoPermission"):
            LockStatus([RedisKeys.of("k")], as_user(*more))
    lock_server = as_user(*acl.rules("lock_of"))
    ReentrantLock("k", lock_server=lock_server).acquire()
    assert LockStatus([RedisKeys.of("k")], lock_server).release()
    assert acl.refused(server, lock_server.user) == set()


def test_the_rules_name_each_command_and_no_category():
    """A category would allow more than the lock needs."""
    given = [rule for rule in acl.rules("worker") if rule.startswith("+")]
    assert len(given) == len(set(given)) == 25  # as the page says
    assert not [rule for rule in given if "@" in rule]


@pytest.mark.parametrize(
    "command",
    [
        ("EXISTS", "celery"),
        ("SET", "rlock", "1"),
        ("EVAL", "return redis.call('DEL', 'celery')", 0),
        ("EVAL", "return redis.call('DEL', KEYS[1])", 1, "celery"),
        ("PUBLISH", "news", "1"),
        ("PUBLISH", "rlock:other", "1"),
        ("EVAL", "return redis.call('PUBLISH', 'news', '1')", 0),
        ("KEYS", "*"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "*"),
        ("CLIENT", "LIST"),
        ("ACL", "WHOAMI"),
        ("SCRIPT", "FLUSH"),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_the_user_cannot_run_other_commands(as_user, command):
    with pytest.raises(ResponseError, match=r"permission|can't|cannot"):
        as_user().client.execute_command(*command)


def test_the_user_cannot_use_another_prefix(as_user):
    with pytest.raises(LockUnavailable, match="NoPermissionError"):
        verbs.use_all(as_user(prefix="other:"))


def test_another_database_needs_one_more_right(as_user):
    with pytest.raises(LockUnavailable, match="select"):
        verbs.use_all(as_user(database=1))
    verbs.use_all(as_user(*acl.rules("database"), database=1))


def test_lock_replicas_needs_one_more_right(server, as_user):
    """The test needs no replica: an error about a missing replica shows that the command is allowed."""

    def take(lock_server):
        return lock_server.acquire(
            lock_server.redis_keys("replicated"), verbs.new_owner(), 1, verbs.LEASE, "", replicas=1
        )

    with pytest.raises(LockUnavailable, match="'wait'"):
        take(as_user())
    server.client().flushdb()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        take(as_user(*acl.rules("lock_replicas")))


def test_the_doctor_agrees_with_the_page(doctor_says):
    assert {command.lower() for command in NEEDED} == set(acl.commands("worker")) - {"client|setname"}
    assert doctor_says() == "warn"
    assert doctor_says(*acl.rules("operators")) == "ok"


def survey_user(server, without=()):
    acl.set_user(server, "survey", acl.rules("survey"), without)
    return connect(acl.login(server, "survey"), {"master_name": ""})


def look_at(client):
    """What `celery rlock ls`, `show`, `explain`, `watch` and the exporter ask."""
    inventory = Inventory(client, "rlock:")
    found = [record.key for batch in inventory.locks() for record in batch]
    assert inventory.waiters("rlock:{surveyed}", 5) == (0, [])
    assert inventory.silent("rlock:{surveyed}", ["gone"]) == {"gone"}
    assert inventory.first_waiters(["rlock:{surveyed}"], 5) == {"rlock:{surveyed}": []}
    return found


def test_the_user_of_surveys_can_look_and_change_nothing(server, as_user):
    lock_server = as_user()
    server.client().flushdb()
    lock_server.acquire(lock_server.redis_keys("surveyed"), verbs.new_owner(), 1, verbs.LEASE, "")
    client = survey_user(server)
    assert look_at(client) == ["surveyed"]
    assert acl.refused(server, "survey") == set()
    for command in (
        ("DEL", "rlock:{surveyed}"),
        ("HSET", "rlock:{surveyed}", "field", "1"),
        ("PEXPIRE", "rlock:{surveyed}", "1"),
        ("EVAL", "return 1", 0),
        ("PUBLISH", "rlock:wake:x", "turn"),
        ("HSCAN", "celery", 0),
        ("FLUSHALL",),
    ):
        with pytest.raises(NoPermissionError):
            client.execute_command(*command)


@pytest.mark.parametrize("command", acl.commands("survey"))
def test_the_user_of_surveys_needs_every_one_of_its_commands(server, command):
    server.client().hset("rlock:{surveyed}", mapping={"d:id": 1, "@token": 1})
    with pytest.raises((NoPermissionError, AssertionError)):
        look_at(survey_user(server, without=[command]))
