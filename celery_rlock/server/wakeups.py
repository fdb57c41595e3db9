"""What tells the waiters of this process that it is their turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from celery_rlock.core.cluster import FAILURES, Client, address, primaries, refresh
from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Place
from celery_rlock.core.scripts import Scripts, text
from celery_rlock.core.subscription import Subscription

_MEMORY = 1000


class Ears(NamedTuple):
    """What a waiter does when it is told something, on the listener's thread."""

    on_turn: Callable[[], None]  # its turn has come, and its place is given up
    on_next: Callable[[], None]  # the one before it was woken: it is to look soon whether that one came
    on_doubt: Callable[[], None]  # it may have missed something: it is to ask


class Listener:
    """Hears, on a channel of this process's own, whose turn it is.

    It subscribes at every primary, for the script that publishes learns only of those who listen at its own
    one; what a Cluster passes on to the others is heard once. All this starts with the first waiter and ends
    when there has been none for a while.
    """

    def __init__(self) -> None:
        self.id = token_hex(4)
        self.listening = threading.Event()  # with one ear at least; each new one makes all ask again
        self._mutex = threading.Lock()
        self._ears: dict[str, Ears] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._told: dict[str, None] = {}

    def place(self, name: Name, owner: Owner, since: str, keep: float) -> Place:
        return Place(name, f"{self.id}:{owner.field}", since, keep)

    def add(self, scripts: Scripts, place: Place, ears: Ears) -> None:
        """Listen for this place, until its turn has come or it is discarded."""
        with self._mutex:
            self._ears[_address(place)] = ears
            if self._subscriptions:
                return
        self._subscribe(scripts)

    def discard(self, place: Place) -> None:
        with self._mutex:
            self._ears.pop(_address(place), None)

    def _subscribe(self, scripts: Scripts) -> set[str]:
        """Have a subscription at each primary: their addresses. None is known while a Cluster is down."""
        try:
            servers = {address(server): server for server in primaries(scripts.client)}
        except FAILURES:
            return set()
        with self._mutex:
            for where in servers.keys() - self._subscriptions.keys():
                self._subscriptions[where] = Subscription(
                    servers[where],
                    scripts.channels + self.id,
                    partial(self._hear, scripts),
                    partial(self._is_wanted, scripts, where),
                )
                self._subscriptions[where].start()
        return set(servers)

    def _is_wanted(self, scripts: Scripts, where: str, subscription: Subscription) -> bool:
        refresh(scripts.client)
        is_primary = where in self._subscribe(scripts)
        with self._mutex:
            mine = self._subscriptions.get(where) is subscription
            wanted = mine and is_primary and bool(self._ears)
            if mine and not wanted:
                del self._subscriptions[where]
            if not any(other.listening for other in self._subscriptions.values()):
                self.listening.clear()
            return wanted

    def _hear(self, scripts: Scripts, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self.listening.set()
            with self._mutex:
                everybody = list(self._ears.values())
            for ears in everybody:
                ears.on_doubt()
            return
        said = text(message["data"])
        what, _, rest = said.partition(" ")
        waiter = rest.partition(" ")[2]
        if not waiter or self._was_told(said):
            return
        if what == "turn":
            self._tell_turn(scripts, waiter)
        elif what == "next":
            with self._mutex:
                ears_of_next = self._ears.get(waiter)
            if ears_of_next is not None:
                ears_of_next.on_next()

    def _was_told(self, said: str) -> bool:
        """A Cluster's nodes pass on what is published at one of them."""
        with self._mutex:
            if said in self._told:
                return True
            self._told[said] = None
            if len(self._told) > _MEMORY:
                del self._told[next(iter(self._told))]
            return False

    def _tell_turn(self, scripts: Scripts, waiter: str) -> None:
        with self._mutex:
            ears = self._ears.pop(waiter, None)
        if ears is not None:
            ears.on_turn()
        else:  # who waited has left without giving up its place
            lock = waiter.partition(f" {self.id}:")[0]
            scripts.wake(Name.around(lock, lock))


def _address(place: Place) -> str:
    """How lua/release.lua calls it."""
    return f"{place.name.lock} {place.waiter}"


def listener_of(scripts: Scripts) -> Listener:
    """This process's listener for the locks of a server, under their prefix."""
    with _mutex:
        listeners = _listeners.setdefault(scripts.client, {})
        return listeners.setdefault(scripts.channels, Listener())


def _after_fork() -> None:
    """A forked child has none of its parent's threads, and another one of them may have held the mutex."""
    global _mutex  # noqa: PLW0603
    _mutex = threading.Lock()
    _listeners.clear()


_mutex = threading.Lock()
_listeners: WeakKeyDictionary[Client, dict[str, Listener]] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_after_fork)
