"""The users that docs/security.md tells to make, and all that the lock does with a server."""

from __future__ import annotations

import re
import threading
import uuid

from celery_rlock.core.listener import Ears, listener_of
from celery_rlock.core.name import QUEUED, Owner
from celery_rlock.core.replies import Busy, Heir, Place, Taken
from tests.support.daemon import ROOT

PAGE = ROOT / "docs" / "security.md"
PASSWORD = "of-the-least-user"
LEASE = 20.0
TIME_TO_LISTEN = 3.0


def rules(name):
    """The rules in the block of the page that is called so, each a word."""
    [block] = re.findall(rf"^```acl {name}\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = block.replace(">PASSWORD", f">{PASSWORD}").split()
    return words[3:] if words[:2] == ["ACL", "SETUSER"] else words


def commands(name):
    return [rule[1:] for rule in rules(name) if rule[0] == "+"]


def make_user(server, *more, without=()):
    """A new user's name, who may do what the page says and `more`, but not `without`."""
    user = f"user-{uuid.uuid4().hex[:8]}"
    denied = {f"+{command}" for command in without}
    with server.client() as client:
        wanted = [rule for rule in (*rules("worker"), *more) if rule not in denied]
        client.execute_command("ACL", "SETUSER", user, "reset", *wanted)
    return user


def login(server, user):
    """The URL to log in with."""
    return server.url.replace("redis://", f"redis://{user}:{PASSWORD}@")


def use_everything(scripts):
    """Every verb, with every branch of its script that needs a command of its own. Raises what is refused."""
    for verb in (enter_and_leave, wait_and_be_told, give_up_a_place, queue_and_take_over, tell_copies):
        verb(scripts, scripts.name(f"key-{uuid.uuid4().hex[:8]}"))


def enter_and_leave(scripts, name):
    me = owner()
    for depth in (1, 2):
        assert isinstance(scripts.acquire(name, me, depth, LEASE, "task"), Taken)
    assert scripts.locked(name)
    assert scripts.owned(name, me)
    assert isinstance(scripts.acquire(name, owner(), 1, LEASE, "task"), Busy)
    assert allowed(scripts.renew([(name, me, 2 * LEASE)]))
    for depth in (1, 0):
        assert scripts.release(name, me, depth) == 1


def wait_and_be_told(scripts, name):
    me, listener, told = owner(), listener_of(scripts), threading.Event()
    assert isinstance(scripts.acquire(name, me, 1, LEASE, ""), Taken)
    places = [listener.place(name, owner(), "", LEASE) for _ in range(2)]
    for place in places:
        listener.add(scripts, place, Ears(told.set, lambda: None, lambda: None))
    assert listener.listening.wait(TIME_TO_LISTEN), "nobody listens"
    assert allowed(scripts.wait(places))
    assert scripts.release(name, me, 0) == 1
    assert told.wait(TIME_TO_LISTEN), "nobody is told"
    for place in places:
        listener.discard(place)
        scripts.give_up(place)


def give_up_a_place(scripts, name):
    """The waiter's process is dead, so nobody hears that it is its turn."""
    me = owner()
    assert isinstance(scripts.acquire(name, me, 1, LEASE, ""), Taken)
    dead = [Place(name, f"dead:{owner().field}", "", LEASE) for _ in range(3)]
    assert allowed(scripts.wait(dead))
    scripts.give_up(dead[0])
    assert scripts.release(name, me, 0) == 1
    assert allowed(scripts.wait(dead[1:]))
    scripts.wake(name)


def queue_and_take_over(scripts, name):
    me = owner()
    assert isinstance(scripts.acquire(name, me._replace(delivery=QUEUED), 1, LEASE, ""), Taken)
    assert isinstance(scripts.acquire(name, me, 1, LEASE, ""), Taken)
    assert allowed(scripts.wait([Place(name, f"dead:{me.field}", "", LEASE)]))
    assert scripts.release(name, me, 0, heir=Heir(QUEUED, LEASE)) == 1
    assert scripts.release(name, me._replace(delivery=QUEUED), 0) == 1


def tell_copies(scripts, name):
    me = owner()
    assert isinstance(scripts.acquire(name, me, 1, LEASE, ""), Taken)
    assert scripts.copy(name, me.task_id, 0) == 1
    assert scripts.release(name, me, 0, early=True) == 2
    assert scripts.finish(name, me, 0) == 1
    assert scripts.copy(name, me.task_id, 0) == 2
    scripts.tell_ended(name, me.task_id, 1)


def owner():
    return Owner("worker@test", uuid.uuid4().hex[:8], str(uuid.uuid4()))


def allowed(answers):
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
