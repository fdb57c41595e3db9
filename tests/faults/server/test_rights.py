"""The users of docs/security.md: they may do all that the lock does, and nothing else."""

from __future__ import annotations

import pytest
from celery import Celery
from redis.exceptions import RedisError, ResponseError

from celery_rlock import LockUnavailable
from celery_rlock.checks.catalogue import CHECKS
from celery_rlock.checks.rights import NEEDED
from celery_rlock.checks.setup import Setup
from celery_rlock.core.client import connect
from celery_rlock.core.scripts import Scripts
from tests.support.servers import Server, available_kinds
from tests.trouble import rights

#: What redis-py asks for (servers before Redis 7.2 do not know it) and a worker that starts; both do without.
UNNEEDED = {"client|setinfo", "info", "ping"}


@pytest.fixture(scope="module", params=available_kinds())
def server(request):
    with Server.start(request.param) as server:
        yield server


@pytest.fixture
def as_user(server):
    """The verbs as a new user, which the page makes; its scripts are not known to the server yet."""

    def verbs(*more, without=(), prefix="rlock:", database=0):
        user = rights.make_user(server, *more, without=without)
        with server.client() as client:
            client.script_flush()
        scripts = Scripts(connect(f"{rights.login(server, user).removesuffix('/0')}/{database}"), prefix)
        scripts.user = user
        return scripts

    return verbs


@pytest.fixture
def doctor_says(server):
    """How grave the doctor finds what a user of the page and `more` may do."""

    def level(*more):
        url = rights.login(server, rights.make_user(server, *more))
        with Celery("proj", set_as_current=False) as app:
            app.conf.rlock_url = url
            [check] = [check for check in CHECKS if check.name == "rights"]
            [finding] = check.findings(Setup(app))
        return finding.level

    return level


@pytest.fixture
def refused(server):
    """What the server has refused to a user."""

    def of(user):
        with server.client(decode_responses=True) as client:
            return {entry["object"] for entry in client.acl_log() if entry["username"] == user} - UNNEEDED

    return of


def test_the_user_may_do_all_that_the_lock_does(as_user, refused):
    scripts = as_user()
    rights.use_everything(scripts)
    assert refused(scripts.user) == set()


@pytest.mark.parametrize("command", rights.commands("worker"))
def test_no_command_of_the_user_can_be_left_out(as_user, refused, command):
    scripts = as_user(without=[command])
    with pytest.raises((LockUnavailable, RedisError, AssertionError)):
        rights.use_everything(scripts)
    assert refused(scripts.user) == {command}


def test_the_user_is_listed_command_by_command():
    """No category brings more than is needed with it."""
    given = [rule for rule in rights.rules("worker") if rule.startswith("+")]
    assert len(given) == len(set(given)) == 22  # as the page says
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
def test_the_user_may_do_nothing_else(as_user, command):
    with pytest.raises(ResponseError, match=r"permission|can't|cannot"):
        as_user().client.execute_command(*command)


def test_another_prefix_is_not_the_users(as_user):
    with pytest.raises(LockUnavailable, match="NoPermissionError"):
        rights.use_everything(as_user(prefix="other:"))


def test_another_database_needs_its_own_right(as_user):
    with pytest.raises(LockUnavailable, match="select"):
        rights.use_everything(as_user(database=1))
    rights.use_everything(as_user(*rights.rules("database"), database=1))


def test_replicas_need_their_own_right(server, as_user):
    """The replica need not be there: the answer that there is none is an answer."""

    def take(scripts):
        return scripts.acquire(scripts.name("replicated"), rights.owner(), 1, rights.LEASE, "", replicas=1)

    with pytest.raises(LockUnavailable, match="'wait'"):
        take(as_user())
    server.client().flushdb()
    with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
        take(as_user(*rights.rules("lock_replicas")))


def test_the_doctor_agrees_with_the_page(doctor_says):
    assert {command.lower() for command in NEEDED} == set(rights.commands("worker")) - {"client|setname"}
    assert doctor_says() == "warn"
    assert doctor_says(*rights.rules("operators")) == "ok"
