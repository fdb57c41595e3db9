"""What tells the waiters of this process that it is their turn."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from secrets import token_hex
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import redis

from celery_rlock.core.name import Name, Owner
from celery_rlock.core.replies import Place
from celery_rlock.core.scripts import Scripts, text

logger = logging.getLogger("celery_rlock")

_SILENCE = 5.0
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_TO_MYSELF = ""


class Ears(NamedTuple):
    """What a waiter does when it is told something, on the listener's thread."""

    on_turn: Callable[[], None]  # its turn has come, and its place is given up
    on_next: Callable[[], None]  # the one before it was woken: it is to look soon whether that one came
    on_doubt: Callable[[], None]  # it may have missed something: it is to ask


class Listener:
    """Hears, on a channel of this process's own, whose turn it is.

    One thread with one connection, started by the first waiter; it ends when there has been none for a while.
    While there are waiters it speaks to itself now and then: when it does not hear itself, or the server says
    that nobody does, then the connection is dead or its server is not the primary any more.
    """

    def __init__(self) -> None:
        self.id = token_hex(4)
        self.listening = threading.Event()
        self._mutex = threading.Lock()
        self._ears: dict[str, Ears] = {}
        self._thread: threading.Thread | None = None

    def place(self, name: Name, owner: Owner, since: str, keep: float) -> Place:
        return Place(name, f"{self.id}:{owner.field}", since, keep)

    def add(self, scripts: Scripts, place: Place, ears: Ears) -> None:
        """Listen for this place, until its turn has come or it is discarded."""
        with self._mutex:
            self._ears[_address(place)] = ears
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(scripts,), name="rlock-listener", daemon=True
                )
                self._thread.start()

    def discard(self, place: Place) -> None:
        with self._mutex:
            self._ears.pop(_address(place), None)

    def _run(self, scripts: Scripts) -> None:
        failures = 0
        while not self._is_idle():
            try:
                with scripts.client.pubsub() as pubsub:
                    pubsub.subscribe(scripts.channels + self.id)
                    failures = 0 if self._listen(scripts, pubsub) else failures + 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiters need ears
                failures += 1
                logger.debug("the listener for released locks starts again: %r", error)
            self.listening.clear()
            if failures:
                threading.Event().wait(_PAUSES[min(failures, len(_PAUSES)) - 1])

    def _is_idle(self) -> bool:
        with self._mutex:
            if self._ears:
                return False
            self._thread = None
            return True

    def _listen(self, scripts: Scripts, pubsub: Any) -> bool:
        """Until there is nobody to listen for (True), or nothing to hear (False)."""
        asked = True  # the subscription is to be confirmed
        while True:
            message = pubsub.get_message(timeout=_SILENCE)
            if message is not None:
                asked = False
                self._hear(scripts, message)
            elif not self._ears:
                return True
            elif asked or not scripts.client.publish(scripts.channels + self.id, _TO_MYSELF):
                return False
            else:
                asked = True

    def _hear(self, scripts: Scripts, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self.listening.set()
            with self._mutex:
                everybody = list(self._ears.values())
            for ears in everybody:
                ears.on_doubt()
            return
        what, _, address = text(message["data"]).partition(" ")
        if what == "turn":
            self._tell_turn(scripts, address)
        elif what == "next":
            with self._mutex:
                ears_of_next = self._ears.get(address)
            if ears_of_next is not None:
                ears_of_next.on_next()

    def _tell_turn(self, scripts: Scripts, address: str) -> None:
        with self._mutex:
            ears = self._ears.pop(address, None)
        if ears is not None:
            ears.on_turn()
        else:  # who waited has left without giving up its place
            lock = address.partition(f" {self.id}:")[0]
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
_listeners: WeakKeyDictionary[redis.Redis, dict[str, Listener]] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_after_fork)
