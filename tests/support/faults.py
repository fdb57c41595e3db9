"""Which of a connection's requests and replies the proxy lets through."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Literal

from tests.support.resp import Frames, arguments, is_push

Match = Callable[[list[bytes]], bool]
Fate = Literal["pass", "close", "swallow", "drop"]

# The server answers these with any number of messages, so later replies cannot be attributed to requests.
STREAMS = {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR"}


class CutConnection(Exception):
    """Close both ends of the connection at once."""


def named(*names: str) -> Match:
    """A match for commands by their name, in any case."""
    wanted = {name.upper().encode() for name in names}
    return lambda command: command[0].upper() in wanted


def script(path: Path) -> Match:
    """A match for one of the lock's Lua scripts, by its digest or its text."""
    source = path.read_bytes()
    digest = sha1(source, usedforsecurity=False).hexdigest().encode()
    return lambda command: command[1:2] in ([digest], [source])


@dataclass
class Rule:
    """The fate of the next `left` requests that match."""

    match: Match
    fate: Fate
    left: int


@dataclass
class Faults:
    """The rules in force, shared by all connections, and the commands seen."""

    seen: list[list[bytes]] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def fate_of(self, command: list[bytes]) -> Fate:
        """Record the command and spend the first rule that matches it."""
        with self._lock:
            self.seen.append(command)
            for rule in self._rules:
                if rule.left > 0 and rule.match(command):
                    rule.left -= 1
                    return rule.fate
        return "pass"


class RawTraffic:
    """Lets every byte through."""

    def requests(self, data: bytes) -> Iterator[bytes]:
        yield data

    def replies(self, data: bytes) -> Iterator[bytes]:
        yield data


class RespTraffic:
    """One connection's requests and replies, each reply attributed to its request by their order."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._requests, self._replies = Frames(), Frames()
        self._due: deque[Fate] = deque()
        self._streaming = False

    def requests(self, data: bytes) -> Iterator[bytes]:
        """The bytes to forward to the server; raises CutConnection at a request to drop.

        A pipeline stays in one piece: the server has executed all of it when its first reply arrives.
        """
        pipeline = b""
        for frame in self._requests.feed(data):
            command = arguments(frame)
            fate = self._faults.fate_of(command) if command else "pass"
            if fate == "drop":
                yield pipeline
                raise CutConnection
            self._streaming = self._streaming or (bool(command) and command[0].upper() in STREAMS)
            self._due.append(fate)
            pipeline += frame
        yield pipeline

    def replies(self, data: bytes) -> Iterator[bytes]:
        """The replies to forward to the client; raises CutConnection in the place of a lost one."""
        for frame in self._replies.feed(data):
            fate = "pass" if self._streaming or is_push(frame) or not self._due else self._due.popleft()
            if fate == "close":
                raise CutConnection
            if fate == "pass":
                yield frame
