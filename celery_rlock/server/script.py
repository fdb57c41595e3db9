"""Loads the Lua scripts of `lua/` and runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from time import monotonic
from typing import Any

import redis
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_rlock.server.cluster import (
    Client,
    by_server,
    node_of,
    refresh,
    refuse_old_primary,
    server_of,
)
from celery_rlock.server.failures import FAILURES
from celery_rlock.server.standalone import careful

_Call = tuple[Sequence[str], Sequence[object]]
_GONE = (RedisConnectionError, RedisTimeoutError, ClusterDownError)


@dataclass(frozen=True)
class Script:
    """One verb of the lock: EVALSHA, and EVAL when the server does not know the script yet."""

    source: str
    sha: str

    @classmethod
    def load(cls, verb: str) -> Script:
        source = (_folder() / f"{verb}.lua").read_text(encoding="utf-8")
        return cls(source, sha1(source.encode(), usedforsecurity=False).hexdigest())

    def run(self, send: Callable[..., Any], keys: Sequence[str], args: Sequence[object]) -> Any:
        """Run the script; `send` takes a command and returns the reply."""
        try:
            return send("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return send("EVAL", self.source, len(keys), *keys, *args)

    def run_replicated(
        self, client: Client, keys: Sequence[str], args: Sequence[object], replicas: int
    ) -> tuple[Any, int]:
        """Run the script, then wait for replicas. Returns the reply and how many replicas have the write."""
        server = server_of(client, keys[0])
        node = node_of(client, server)
        wait = ("WAIT", replicas, _time_to_replicate_ms(server))
        answers: list[Any] = []
        sent = monotonic()
        for command in (("EVALSHA", self.sha), ("EVAL", self.source)):
            # WAIT counts only what its own connection has written, so both go over one connection.
            with careful(client):
                answers = _pipelined(server, [(*command, len(keys), *keys, *args), wait])
            if not isinstance(answers[0], NoScriptError):
                break
        for answer in answers:
            if isinstance(answer, Exception):
                if isinstance(answer, MovedError):
                    refresh(client)
                raise answer
        refuse_old_primary(client, node, keys[0], sent)
        return answers[0], int(answers[1])

    def run_all(self, client: Client, calls: Sequence[_Call], replicas: Sequence[int] = ()) -> list[Any]:
        """Run the script for each call, in one round trip per server.

        Returns a reply or an error for each. It is an error if fewer replicas have the write than `replicas`
        demands for that call.
        """
        wanted = replicas or [0] * len(calls)
        groups, answers = by_server(client, [keys[0] for keys, _ in calls])
        for server, places in groups:
            node, sent = node_of(client, server), monotonic()
            with careful(client):
                batch = self._run_batch(
                    server, [calls[place] for place in places], [wanted[place] for place in places]
                )
            try:
                refuse_old_primary(client, node, calls[places[0]][0][0], sent)
            except FAILURES as error:
                batch = [error] * len(places)
            for place, answer in zip(places, batch, strict=True):
                answers[place] = answer
        if isinstance(client, RedisCluster):
            self._follow(client, calls, answers)
        return answers

    def _run_batch(self, server: redis.Redis, calls: Sequence[_Call], wanted: Sequence[int]) -> list[Any]:
        answers = _replicated(
            server, [("EVALSHA", self.sha, len(keys), *keys, *args) for keys, args in calls], wanted
        )
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            again = [("EVAL", self.source, len(calls[i][0]), *calls[i][0], *calls[i][1]) for i in missing]
            replies = _replicated(server, again, [wanted[i] for i in missing])
            for i, answer in zip(missing, replies, strict=True):
                answers[i] = answer
        return answers

    def _follow(self, client: Client, calls: Sequence[_Call], answers: list[Any]) -> None:
        """Repeat the calls whose slot has moved.

        When a server is gone, learn the new layout for the next try.
        """
        for place, answer in enumerate(answers):
            if isinstance(answer, AskError | TryAgainError):
                try:
                    answers[place] = self.run(client.execute_command, *calls[place])
                except FAILURES as error:
                    answers[place] = error
        if any(isinstance(answer, _GONE) for answer in answers):
            refresh(client)


def _pipelined(server: redis.Redis, commands: Sequence[Sequence[object]]) -> list[Any]:
    try:
        with server.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return pipe.execute(raise_on_error=False)
    except RedisError as error:
        return [error] * len(commands)


def _replicated(
    server: redis.Redis, commands: Sequence[Sequence[object]], wanted: Sequence[int]
) -> list[Any]:
    """Run the commands, and turn the reply of each one that too few replicas have into an error."""
    if not any(wanted):
        return _pipelined(server, commands)
    wait = ("WAIT", max(wanted), _time_to_replicate_ms(server))
    *answers, have_it = _pipelined(server, [*commands, wait])
    for i, replicas in enumerate(wanted):
        if not replicas or answers[i] == 0 or isinstance(answers[i], Exception):
            continue  # it failed, or the lock was not held: then no replica is needed to know it
        if isinstance(have_it, Exception):
            answers[i] = have_it
        elif have_it < replicas:
            answers[i] = RedisError(f"{have_it} of {replicas} replicas had it in time (lock_replicas)")
    return answers


def _time_to_replicate_ms(server: redis.Redis) -> int:
    """Half of the socket timeout, so that WAIT always answers in time."""
    timeout = server.connection_pool.connection_kwargs.get("socket_timeout")
    return max(1, round((timeout or 1.0) * 500))


@cache
def _folder() -> Path:
    """The wheel has the scripts inside the package; a source tree has them in `lua/` beside it."""
    package = Path(__file__).parents[1]
    packaged = package / "lua"
    return packaged if packaged.is_dir() else package.parent / "lua"
