"""Calls every verb of the lock server: a test sees whether a Redis allows and supports all of them."""

from __future__ import annotations

import threading
import uuid

from celery_rlock.server.lock_server import Renewal
from celery_rlock.server.owner import QUEUED, Owner
from celery_rlock.server.replies import Busy, Place, Release, ReleaseReply, Successor, Taken
from celery_rlock.server.wakeups import WakeCallbacks
from tests.support.processes import wait_until

LEASE = 20.0
TIME_TO_LISTEN = 3.0


def use_all(lock_server, stem="key"):
    """Call every verb, with every branch of its script that needs another command; raise what is refused.

    The keys begin with `stem`.
    """
    uses = (enter_and_leave, wait_and_be_woken, give_up_a_place, queue_and_take_over, replace)
    for use in (*uses, mark_redeliveries):
        use(lock_server, lock_server.redis_keys(f"{stem}-{uuid.uuid4().hex[:8]}"))


def enter_and_leave(lock_server, keys):
    me = new_owner()
    for depth in (1, 2):
        taken = lock_server.acquire(keys, me, depth, LEASE, "task")
        assert isinstance(taken, Taken)
    assert lock_server.locked(keys)
    assert lock_server.token(keys, me) == taken.token
    assert isinstance(lock_server.acquire(keys, new_owner(), 1, LEASE, "task"), Busy)
    assert raise_errors(lock_server.renew([Renewal(keys, me, taken.token, 2 * LEASE)]))
    for depth in (1, 0):
        assert lock_server.release(keys, me, Release(depth)) == ReleaseReply.RELEASED


def replace(lock_server, keys):
    me, newer = new_owner(), new_owner()
    taken = lock_server.acquire(keys, me, 1, LEASE, "task")
    busy = lock_server.acquire(keys, newer, 1, LEASE, "task")
    answer = lock_server.replace(keys, me, "task", newer.task_id, busy.since, LEASE, comes_again=True)
    assert answer.is_told
    [heard] = lock_server.renew([Renewal(keys, me, taken.token, LEASE)])
    if isinstance(heard, Exception):
        raise heard
    assert heard == newer.task_id
    assert lock_server.redelivery(keys, me) == newer.task_id
    assert lock_server.release(keys, me, Release()) == ReleaseReply.RELEASED


def wait_and_be_woken(lock_server, keys):
    me, wakeups, woken = new_owner(), lock_server.wakeups, threading.Event()
    assert isinstance(lock_server.acquire(keys, me, 1, LEASE, ""), Taken)
    places = [wakeups.place(keys, new_owner(), 1, LEASE) for _ in range(2)]
    callbacks = WakeCallbacks(woken.set, lambda: None, lambda: None)
    for place in places:
        wakeups.add(place, callbacks)
    wait_until(lambda: wakeups.listening, timeout=TIME_TO_LISTEN, what="the subscription")
    assert raise_errors(lock_server.wait(places))
    assert isinstance(lock_server.acquire(keys, new_owner(), 1, LEASE, "", place=places[0]), Busy)
    assert lock_server.release(keys, me, Release()) == ReleaseReply.RELEASED
    assert woken.wait(TIME_TO_LISTEN), "the release has woken no waiter"
    lock_server.pass_on(places[0])
    for place in places:
        wakeups.discard(place, callbacks)
        lock_server.give_up(place)


def give_up_a_place(lock_server, keys):
    """The process of these waiters is dead, so no subscriber receives their wake-up."""
    me = new_owner()
    assert isinstance(lock_server.acquire(keys, me, 1, LEASE, ""), Taken)
    dead = [Place(keys, f"dead:{new_owner().field}", 0, LEASE) for _ in range(3)]
    assert raise_errors(lock_server.wait(dead))
    lock_server.give_up(dead[0])
    assert lock_server.release(keys, me, Release()) == ReleaseReply.RELEASED
    assert raise_errors(lock_server.wait(dead[1:]))
    lock_server.pass_on(dead[1]._replace(since=1))
    lock_server.wake(keys)


def queue_and_take_over(lock_server, keys):
    me = new_owner()
    assert isinstance(lock_server.acquire(keys, me._replace(delivery=QUEUED), 1, LEASE, ""), Taken)
    assert isinstance(lock_server.acquire(keys, me, 1, LEASE, ""), Taken)
    assert raise_errors(lock_server.wait([Place(keys, f"dead:{me.field}", 0, LEASE)]))
    assert lock_server.release(keys, me, Release(successor=Successor(QUEUED, LEASE))) == 1
    assert lock_server.release(keys, me._replace(delivery=QUEUED), Release()) == 1


def mark_redeliveries(lock_server, keys):
    me = new_owner()
    assert isinstance(lock_server.acquire(keys, me, 1, LEASE, ""), Taken)
    assert lock_server.redelivery(keys, me) == 1
    assert lock_server.release(keys, me, Release(early=True)) == 2
    assert lock_server.release(keys, me, Release(ended=True)) == ReleaseReply.RELEASED
    assert lock_server.redelivery(keys, me) == 2
    lock_server.mark_ended(keys, new_owner())
    publish_again(lock_server, keys)


def publish_again(lock_server, keys):
    me = new_owner()
    lock_server.mark_unacked(keys, me)
    assert isinstance(lock_server.acquire(keys, me, 1, LEASE, ""), Taken)
    assert lock_server.release(keys, me, Release(early=True, republished=True)) == 2
    assert lock_server.release(keys, me, Release(ended=True, republished=True)) == ReleaseReply.RELEASED
    assert lock_server.redelivery(keys, me, mark=False) == 2
    lock_server.mark_acked(keys, me)
    assert lock_server.redelivery(keys, me, mark=False) == 0


def new_owner():
    return Owner("worker@test", uuid.uuid4().hex[:8], str(uuid.uuid4()))


def raise_errors(answers):
    """The answers of a batch; raises the first of them that is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
