"""A real server that runs the shipped scripts on given keys at a given time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import redis

HERE = Path(__file__).parent
LUA = HERE.parents[1] / "lua"
#: All scripts, for keys with a limit and without one. tests/redis/test_places_model.py and
#: tests/redis/test_pending_model.py try longer sequences of requests, without the processes that send them.
VERBS = (
    *("acquire", "acquire_place", "release", "renew", "wait", "pass", "join", "replace", "redelivery"),
    *("unacked", "reserve", "queue", "unqueue"),
)
COMMAND = "command"

#: The time of every state, in microseconds: what lies in the past or the future is moved around it.
NOW = 1_000_000_000_000_000


class Key(NamedTuple):
    """A Redis key: its values in a fixed order, and the milliseconds it still has; -1: it lives for ever."""

    name: str
    kind: str
    values: tuple[Any, ...]
    left: int

    def field(self, name: str) -> str | None:
        return dict(zip(self.values[::2], self.values[1::2], strict=True)).get(name)


class Request(NamedTuple):
    """A script, or a single command, with its KEYS and ARGV."""

    verb: str
    names: tuple[str, ...]
    args: tuple[str, ...]


class Reply(NamedTuple):
    value: Any
    keys: tuple[Key, ...]
    published: tuple[tuple[str, str], ...]


class VirtualServer:
    """Runs requests. Equal requests on equal keys have equal replies, so each is run once."""

    def __init__(self, client: redis.Redis, sources: dict[str, str] | None = None) -> None:
        self.requests = 0
        self._known: dict[Any, Reply] = {}
        self._scripts: dict[str, Any] = {}
        frame = (HERE / "virtual_time.lua").read_text()
        for verb, source in (sources or shipped_sources()).items():
            self._scripts[verb] = client.register_script(frame.replace("\nSHIPPED\n", f"\n{source}\n"))
        command = "return redis.call(unpack(ARGV))"
        self._scripts[COMMAND] = client.register_script(frame.replace("\nSHIPPED\n", f"\n{command}\n"))

    def run(self, request: Request, keys: tuple[Key, ...], listeners: tuple[str, ...]) -> Reply:
        question = request, keys, listeners
        if question not in self._known:
            self._known[question] = self._ask(*question)
        return self._known[question]

    def _ask(self, request: Request, keys: tuple[Key, ...], listeners: tuple[str, ...]) -> Reply:
        self.requests += 1
        question = {
            "now": NOW,
            "keys": [
                [key.name, key.kind, _swapped(key.values) if key.kind == "zset" else key.values, key.left]
                for key in keys
            ],
            "listeners": listeners,
            "names": request.names,
            "args": request.args,
        }
        value, after, published = self._scripts[request.verb](args=[json.dumps(question)])
        return Reply(
            _frozen(value),
            tuple(
                sorted(Key(name, kind, _ordered(kind, values), left) for name, kind, values, left in after)
            ),
            tuple((channel, said) for channel, said in published),
        )


def shipped_sources() -> dict[str, str]:
    return {verb: (LUA / f"{verb}.lua").read_text(encoding="utf-8") for verb in VERBS}


def _ordered(kind: str, values: Any) -> tuple[Any, ...]:
    if kind == "string":
        return (values,)
    if kind == "zset":
        return tuple(values)
    pairs = sorted(zip(values[::2], values[1::2], strict=True))
    return tuple(value for pair in pairs for value in pair)


def _swapped(values: tuple[Any, ...]) -> list[Any]:
    """ZADD wants the score first, ZRANGE tells it last."""
    return [
        value for member, score in zip(values[::2], values[1::2], strict=True) for value in (score, member)
    ]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
