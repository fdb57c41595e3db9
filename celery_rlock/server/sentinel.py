"""A client that follows the primary that the sentinels name, and doubts an old one."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from celery_rlock.server.clock import now
from celery_rlock.server.pool import SentinelPool
from celery_rlock.server.standalone import StandaloneRedis

#: Seconds between two questions to a sentinel, and the pause after no sentinel answered.
_ASK_EVERY, _ASK_LATER = 1.0, 5.0

#: An answer that took longer, in seconds, may come from a server that slept through a failover.
_SLOW = 0.25

#: For so many seconds after a sentinel announced a new primary, no other server is trusted.
_TRUST_NEWS = 5.0

_PROMOTING, _SWITCHED, _ABORTED = (
    "+failover-state-send-slaveof-noone",
    "+switch-master",
    "-failover-abort-*",
)

_Address = tuple[str, int]
_UNKNOWN: _Address = ("", 0)


class SentinelRedis(StandaloneRedis):
    """Trusts an answer only if, by what the sentinels said, it came from the primary.

    A primary that was frozen, cut off or switched does not know that it has a successor. Until the sentinels
    demote it, some ten seconds later, it accepts writes that no other server sees, and connections to it
    still work. So this client hears from every sentinel when it begins a failover and when it has ended one,
    and looks at that before each command and after each answer. It also asks a sentinel once a second, and
    after each slow answer, which server is the primary.
    """

    connection_pool: SentinelPool

    def __init__(self, make_pool: Callable[[], SentinelPool]) -> None:
        super().__init__(make_pool)
        self._ask_at = 0.0
        self._news, self._pid = _News(self.connection_pool), os.getpid()
        self._inherited: list[_News] = []

    def start_anew(self) -> None:
        super().start_anew()
        self._ask_at = 0.0
        if self._pid != os.getpid():
            # Kept, because redis-py takes a mutex of the parent when it deletes a subscription.
            self._inherited.append(self._news)
            self._news, self._pid = _News(self.connection_pool), os.getpid()

    def guarded(self, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return self._trusted(super().guarded, send, *args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        pipe = super().pipeline(*args, **options)
        pipe.execute = partial(self._trusted, pipe.execute)  # type: ignore[method-assign]
        return pipe

    @property
    def _primary(self) -> _Address | None:
        """The primary that a sentinel named last."""
        address: _Address | None = self.connection_pool.master_address
        return address

    def _trusted(self, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Send, and return the answer if the server that gave it is the primary."""
        if now() >= self._ask_at or self._news.contradict(self._primary):
            self._ask()
            self._refuse_unless(self._primary)
        primary, sent = self._primary, now()
        answer = send(*args, **options)
        if now() - sent > _SLOW:
            self._ask()
        self._refuse_unless(primary)
        return answer

    def _refuse_unless(self, primary: _Address | None) -> None:
        if self._news.contradict(primary) or (primary is not None and self._primary != primary):
            raise RedisConnectionError("the sentinels replace the primary, so its answer does not count")

    def _ask(self) -> None:
        self._ask_at = now() + _ASK_EVERY
        self._news.subscribe()
        try:
            # The pool drops its idle connections when the primary has changed.
            self.connection_pool.get_master_address()  # type: ignore[no-untyped-call]
        except RedisError:  # no sentinel answers: the primary that we know may still work
            self._ask_at = now() + _ASK_LATER


class _News:
    """What the sentinels announce about failovers.

    A subscription to each sentinel, read by whichever thread looks at it: there is no thread that has to wake
    up first. The sentinel that leads a failover announces it about a tenth of a second before it promotes a
    replica, and a second or more before any sentinel names the new primary.
    """

    def __init__(self, pool: SentinelPool) -> None:
        self._name = pool.service_name
        self._sentinels: list[redis.Redis] = list(pool.sentinel_manager.sentinels)
        self._subscriptions: dict[redis.Redis, PubSub] = {}
        self._retry_at = dict.fromkeys(self._sentinels, 0.0)
        self._readable = selectors.DefaultSelector()
        self._mutex = threading.Lock()
        self._expected = _UNKNOWN
        self._until = 0.0

    def contradict(self, primary: _Address | None) -> bool:
        """Whether a sentinel said lately that another server is the primary, or is about to be."""
        if self._subscriptions and self._readable.select(0):
            with self._mutex:
                for key, _ in self._readable.select(0):
                    self._read(key)
        return now() < self._until and primary != self._expected

    def subscribe(self) -> None:
        """Subscribe to the sentinels that we do not hear.

        One that cannot be reached is left out for a while, and the rest of them wait for the next call, so
        that a call never waits for more than one.
        """
        with self._mutex:
            for sentinel in self._sentinels:
                if sentinel in self._subscriptions or now() < self._retry_at[sentinel]:
                    continue
                self._retry_at[sentinel] = now() + _ASK_LATER
                try:
                    self._subscribe(sentinel)
                except (RedisError, OSError):
                    return

    def _subscribe(self, sentinel: redis.Redis) -> None:
        self._forget(sentinel)
        subscription = sentinel.pubsub()
        try:
            subscription.psubscribe(_PROMOTING, _SWITCHED, _ABORTED)
            watched: Any = sentinel.sentinel_masters()
            if "failover_in_progress" in watched.get(self._name, {}).get("flags", ""):
                self._expect(_UNKNOWN)
            # redis-py has no public name for the socket, from 5.2 to 8.1.
            socket = subscription.connection._sock  # noqa: SLF001
            self._subscriptions[sentinel] = subscription
            self._readable.register(socket, selectors.EVENT_READ, sentinel)
        except BaseException:  # also one that a signal raises
            self._forget(sentinel)
            subscription.close()
            raise

    def _forget(self, sentinel: redis.Redis) -> None:
        """Also what is left of a subscription that a signal interrupted."""
        self._subscriptions.pop(sentinel, None)
        for key in list(self._readable.get_map().values()):
            if key.data is sentinel:
                self._readable.unregister(key.fileobj)

    def _read(self, key: selectors.SelectorKey) -> None:
        subscription = self._subscriptions.get(key.data)
        if subscription is None:
            self._forget(key.data)
            return
        try:
            while message := subscription.get_message(timeout=0):
                if message["type"] == "pmessage":
                    self._note(_text(message["channel"]), _text(message["data"]).split())
        except BaseException as error:  # also one that a signal raises: then part of a message may be read
            self._forget(key.data)
            subscription.close()
            if not isinstance(error, RedisError | OSError):
                raise

    def _note(self, event: str, words: list[str]) -> None:
        if self._name not in words:
            return  # these sentinels watch other primaries too
        if event == _SWITCHED:  # its words are: name, old host, old port, new host, new port
            self._expect((words[3], int(words[4])))
        elif event == _PROMOTING:
            self._expect(_UNKNOWN)
        else:
            self._until = 0.0

    def _expect(self, primary: _Address) -> None:
        self._expected, self._until = primary, now() + _TRUST_NEWS


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
