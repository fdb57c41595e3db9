"""A Lua script, as it lies in `lua/`, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from celery_rlock.core.cluster import FAILURES, Client, by_server, refresh, server_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    _Call = tuple[Sequence[str], Sequence[object]]


_GONE = (RedisConnectionError, RedisTimeoutError, ClusterDownError)


@dataclass(frozen=True)
class Script:
    source: str
    sha: str

    @classmethod
    def load(cls, verb: str) -> Script:
        source = (_folder() / f"{verb}.lua").read_text(encoding="utf-8")
        return cls(source, sha1(source.encode(), usedforsecurity=False).hexdigest())

    def run(self, client: Client, keys: Sequence[str], args: Sequence[object]) -> Any:
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return client.execute_command("EVAL", self.source, len(keys), *keys, *args)  # type: ignore[no-untyped-call]

    def run_replicated(
        self, client: Client, keys: Sequence[str], args: Sequence[object], replicas: int
    ) -> tuple[Any, int]:
        """Run it, and say how many replicas have what it wrote, in the time that there is for so many."""
        server = server_of(client, keys[0])
        wait = ("WAIT", replicas, _time_to_replicate_ms(server))
        answers: list[Any] = []
        for command in (("EVALSHA", self.sha), ("EVAL", self.source)):
            # WAIT is about what its own connection has written.
            answers = _pipelined(server, [(*command, len(keys), *keys, *args), wait])
            if not isinstance(answers[0], NoScriptError):
                break
        for answer in answers:
            if isinstance(answer, Exception):
                if isinstance(answer, MovedError):
                    refresh(client)
                raise answer
        return answers[0], int(answers[1])

    def run_all(self, client: Client, calls: Sequence[_Call]) -> list[Any]:
        """Run it for each of these calls, in one round trip a server: an answer or an error for each."""
        answers: list[Any] = [None] * len(calls)
        try:
            groups = by_server(client, (keys[0] for keys, _ in calls))
        except FAILURES as error:
            return [error] * len(calls)
        for server, places in groups:
            batch = self._run_batch(server, [calls[place] for place in places])
            for place, answer in zip(places, batch, strict=True):
                answers[place] = answer
        if isinstance(client, RedisCluster):
            self._follow(client, calls, answers)
        return answers

    def _run_batch(self, server: redis.Redis, calls: Sequence[_Call]) -> list[Any]:
        answers = _pipelined(server, [("EVALSHA", self.sha, len(keys), *keys, *args) for keys, args in calls])
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            again = [("EVAL", self.source, len(calls[i][0]), *calls[i][0], *calls[i][1]) for i in missing]
            for i, answer in zip(missing, _pipelined(server, again), strict=True):
                answers[i] = answer
        return answers

    def _follow(self, client: Client, calls: Sequence[_Call], answers: list[Any]) -> None:
        """What a Cluster has elsewhere is asked there; when a server is gone the next try knows better."""
        for place, answer in enumerate(answers):
            if isinstance(answer, AskError | TryAgainError):
                try:
                    answers[place] = self.run(client, *calls[place])
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


def _time_to_replicate_ms(server: redis.Redis) -> int:
    """Half of the time in which the server must answer."""
    timeout = server.connection_pool.connection_kwargs.get("socket_timeout")
    return max(1, round((timeout or 1.0) * 500))


@cache
def _folder() -> Path:
    """The scripts lie inside an installed package, and at the top of a source tree."""
    package = Path(__file__).parents[1]
    packaged = package / "lua"
    return packaged if packaged.is_dir() else package.parent / "lua"
