"""Tells the waiters of this process when it is their turn, over pub/sub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakSet

import redis

from celery_rlock.log import logger
from celery_rlock.server.cluster import Client, address, primaries, refresh
from celery_rlock.server.failures import FAILURES
from celery_rlock.server.forks import in_forked_child
from celery_rlock.server.owner import Owner
from celery_rlock.server.redis_keys import RedisKeys
from celery_rlock.server.replies import Place, text

#: How many messages to remember, to recognise those that a Cluster's nodes pass on.
_MEMORY = 1000

#: No message of ours is longer. Any program that may publish on the channel can send what it likes.
_LONGEST_MESSAGE = 10_000

#: How many places to remember after they were left.
_PLACES = 10_000

#: Seconds of silence after which a subscription tests whether it still hears its server.
SILENCE = 5.0
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
TEST_MESSAGE = ""


class WakeCallbacks(NamedTuple):
    """What a waiter does when it hears something. Called on a listening thread."""

    on_turn: Callable[[], None]  #: it is this waiter's turn; it has lost its place in line
    on_next: Callable[[], None]  #: the waiter before it was woken: look soon whether that one came
    on_doubt: Callable[[], None]  #: a message may have been missed: ask the server


class Waiters:
    """The waiters of one listener, and what to tell them. It hears nothing by itself."""

    def __init__(self, channels: str, wake: Callable[[RedisKeys, str], object]) -> None:
        self.id = token_hex(4)
        self.listening = False  #: whether at least one subscription works
        self._wake = wake
        self._channel = channels + self.id
        self._mutex = threading.Lock()
        self._callbacks: dict[str, list[WakeCallbacks]] = {}
        self._heard: dict[str, None] = {}
        self._places: dict[str, RedisKeys] = {}  # a message may only name a lock that has had a waiter here

    def place(self, redis_keys: RedisKeys, owner: Owner, since: int, keep: float, *, limit: int = 1) -> Place:
        """A place in line whose turn this listener will hear about.

        With a limit, the waiter's turn comes when one of so many places is free.
        """
        listener = self.id if limit == 1 else f"{self.id}/{limit}"
        return Place(redis_keys, f"{listener}:{owner.field}", since, keep)

    def discard(self, place: Place, callbacks: WakeCallbacks) -> bool:
        """Stop listening. Returns whether no other waiter uses this place."""
        address = _address_of(place)
        with self._mutex:
            others = [other for other in self._callbacks.get(address, ()) if other != callbacks]
            if others:
                self._callbacks[address] = others
            else:
                self._callbacks.pop(address, None)
            return not others

    def _note(self, place: Place, callbacks: WakeCallbacks) -> None:
        address = _address_of(place)
        with self._mutex:
            self._places.pop(address, None)
            self._places[address] = place.redis_keys
            if len(self._places) > _PLACES:
                del self._places[next(iter(self._places))]
            everything = self._callbacks.setdefault(address, [])
            if callbacks not in everything:  # threads of one execution may wait in one place
                everything.append(callbacks)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._on_subscribed()
            return
        data = message["data"]
        if len(data) > _LONGEST_MESSAGE:
            return
        said = text(data)
        what, _, rest = said.partition(" ")
        waiter = rest.partition(" ")[2]
        if not waiter or self._was_heard(said):
            return
        if what == "turn":
            self._on_turn(waiter)
        elif what == "next":
            with self._mutex:
                everything = list(self._callbacks.get(waiter, ()))
            for callbacks in everything:
                callbacks.on_next()

    def _on_subscribed(self) -> None:
        """A message may have been missed until now, so every waiter asks the server."""
        self.listening = True
        with self._mutex:
            everything = [callbacks for place in self._callbacks.values() for callbacks in place]
        for callbacks in everything:
            callbacks.on_doubt()

    def _was_heard(self, said: str) -> bool:
        with self._mutex:
            if said in self._heard:
                return True
            self._heard[said] = None
            if len(self._heard) > _MEMORY:
                del self._heard[next(iter(self._heard))]
            return False

    def _on_turn(self, address: str) -> None:
        with self._mutex:
            everything = self._callbacks.pop(address, [])
            redis_keys = self._places.get(address)
        for callbacks in everything:
            callbacks.on_turn()
        if not everything and redis_keys is not None:
            # The waiter left without giving up its place, so the next one is woken.
            self._wake(redis_keys, address.removeprefix(f"{redis_keys.lock} "))


class Wakeups(Waiters):
    """Hears, on a channel of this process, whose turn it is.

    It subscribes at every primary, because a script that publishes learns only about subscribers at its own
    node. Messages that a Cluster's nodes pass on are heard once. Listening starts with the first waiter and
    ends when there has been none for a while.
    """

    def __init__(
        self,
        find_servers: Callable[[], Mapping[str, redis.Redis]],
        channels: str,
        wake: Callable[[RedisKeys, str], object],
    ) -> None:
        super().__init__(channels, wake)
        self._find_servers = find_servers
        self._subscriptions: dict[str, Subscription] = {}

    def add(self, place: Place, callbacks: WakeCallbacks) -> None:
        """Listen for this place until its turn comes or it is discarded."""
        self._note(place, callbacks)
        if not self._subscriptions:
            self._subscribe()

    def _subscribe(self) -> set[str]:
        """Subscribe at every primary that has no subscription yet. Returns the addresses of all primaries."""
        try:
            servers = self._find_servers()
        except FAILURES:  # a Cluster that is down has no known primaries
            return set()
        with self._mutex:
            for where in servers.keys() - self._subscriptions.keys():
                subscription = Subscription(
                    servers[where],
                    self._channel,
                    self._on_message,
                    partial(self._is_wanted, where),
                )
                self._subscriptions[where] = subscription
                subscription.start()
        return set(servers)

    def _is_wanted(self, where: str, subscription: Subscription) -> bool:
        with self._mutex:
            if not self._callbacks:  # do not subscribe: a new subscription would only ask this again
                return self._goes_on(where, subscription, is_wanted=False)
        is_primary = where in self._subscribe()
        with self._mutex:
            return self._goes_on(where, subscription, is_wanted=is_primary and bool(self._callbacks))

    def _goes_on(self, where: str, subscription: Subscription, *, is_wanted: bool) -> bool:
        """Whether the subscription goes on; else forget it. The caller has the mutex."""
        is_mine = self._subscriptions.get(where) is subscription
        if is_mine and not is_wanted:
            del self._subscriptions[where]
        if not any(other.listening for other in self._subscriptions.values()):
            self.listening = False
        return is_mine and is_wanted


class Subscription:
    """Listens to one server on a thread of its own, and subscribes again whenever the connection is lost.

    After some silence it publishes a message to itself. If that does not arrive, the connection is dead or
    its server is not the primary any more.
    """

    def __init__(
        self,
        server: redis.Redis,
        channel: str,
        on_message: Callable[[dict[str, Any]], None],
        is_wanted: Callable[[Subscription], bool],
    ) -> None:
        self.server = server
        self.listening = False
        self._channel, self._on_message, self._is_wanted = channel, on_message, is_wanted

    def start(self) -> None:
        threading.Thread(target=self._run, name="rlock-wakeups", daemon=True).start()

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                with self.server.pubsub() as pubsub:
                    pubsub.subscribe(self._channel)
                    failures = 0 if self._listen(pubsub) else failures + 1
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the waiters need a subscription
                failures += 1
                logger.debug("the subscription for released locks starts again: %r", error)
            self.listening = False
            if not self._is_wanted(self):
                return
            if failures:
                threading.Event().wait(PAUSES[min(failures, len(PAUSES)) - 1])

    def _listen(self, pubsub: Any) -> bool:
        """Pass messages on.

        Returns True when the subscription is not wanted any more, False when it is dead.
        """
        expects_message = True  # the confirmation of the subscription
        check_at = monotonic() + SILENCE
        while True:
            message = pubsub.get_message(timeout=max(0.0, check_at - monotonic()))
            if message is not None:
                expects_message = False
                self.listening = True
                self._on_message(message)
            if monotonic() < check_at:
                continue
            if not self._is_wanted(self):
                return True
            if expects_message or not self.server.publish(self._channel, TEST_MESSAGE):
                return False
            expects_message, check_at = True, monotonic() + SILENCE


def _address_of(place: Place) -> str:
    """How lua/release.lua addresses the waiter in its messages."""
    return f"{place.redis_keys.lock} {place.waiter}"


def wakeups_of(client: Client, channels: str, wake: Callable[[RedisKeys, str], object]) -> Wakeups:
    """This process's Wakeups for the locks of a server, under one prefix."""

    def find_servers() -> dict[str, redis.Redis]:
        refresh(client)
        return {address(server): server for server in primaries(client)}

    with _mutex:
        # On the client: it refers to the client, so in a dictionary of ours both would live for ever.
        by_channel: dict[str, Wakeups] = vars(client).setdefault(_WAKEUPS, {})
        _clients.add(client)
        if channels not in by_channel:
            by_channel[channels] = Wakeups(find_servers, channels, wake)
        return by_channel[channels]


def _after_fork() -> None:
    """A forked child has none of its parent's threads, and another thread may have held the mutex."""
    global _mutex  # noqa: PLW0603
    _mutex = threading.Lock()
    for client in list(_clients):
        vars(client).pop(_WAKEUPS, None)


_mutex = threading.Lock()
_WAKEUPS = "_celery_rlock_wakeups"
_clients: WeakSet[Client] = WeakSet()
in_forked_child(_after_fork)
