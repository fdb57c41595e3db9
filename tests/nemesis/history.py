"""What processes believed and what befell them, written down apart from the lock's Redis.

Each process appends to a file of its own, one line of JSON for each event. The kernel does not mix lines that
are appended in one piece, so threads need no mutex, and a process that is killed leaves whole lines. All
times are from one clock that the processes of a machine share, and that also counts while it is suspended.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: How often a process writes that it runs.
PULSE = 0.1


def clock() -> float:
    """Seconds on the clock of all events."""
    return time.clock_gettime(_CLOCK)


class Recorder:
    """The file of this process. A forked child gets one of its own."""

    def __init__(self, directory: str | Path, name: str) -> None:
        self._directory, self._name = Path(directory), name
        self._pid, self._file = 0, -1

    def write(self, what: str, *, at: float | None = None, **fields: Any) -> None:
        """Append an event that happened now, or `at`."""
        if self._pid != os.getpid():
            self._open()
        event = {"at": clock() if at is None else at, "what": what, "pid": self._pid, **fields}
        os.write(self._file, json.dumps(event).encode() + b"\n")

    def _open(self) -> None:
        pid = os.getpid()
        path = self._directory / f"{self._name}-{pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pid = pid  # the last step: another thread may already write
        threading.Thread(target=self._pulse, args=(pid,), name="pulse", daemon=True).start()

    def _pulse(self, pid: int) -> None:
        while pid == os.getpid():
            self.write("pulse")
            time.sleep(PULSE)


class Tail:
    """Reads a directory's events as they are written, each of them once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def new(self) -> list[Event]:
        """The events since the last call, in the order of their times. Half a line is left for later."""
        events = []
        for path in self._directory.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            events += [json.loads(line) for line in whole.splitlines()]
        return sorted(events, key=lambda event: event["at"])


def read(directory: Path) -> list[Event]:
    """All events, in the order of their times."""
    return Tail(directory).new()


@dataclass
class Ownership:
    """A time in which one holder held a key, by its own word.

    From `start` to `end` it could rely on the lock: both are times of looks at `held` that said yes, taken
    before the look, so that a slow machine only makes the time shorter. If its process was killed, `end` is
    when its last known lease ended, or when it died.
    """

    key: str
    owner: str
    token: int
    who: str
    pid: int
    start: float
    end: float
    limit: int = 1
    deadline: float = 0.0
    asked: float = 0.0  #: when the acquire was sent that the server granted
    left: float | None = None  #: when it began to release
    told: float | None = None  #: when it noticed that the lock was lost
    last: float = 0.0  #: its last event
    entries: list[Event] = field(default_factory=list)  #: what it did inside, oldest first

    def __str__(self) -> str:
        return f"{self.owner} held {self.key} from {self.start:.3f} to {self.end:.3f}, token {self.token}"


def ownerships(events: list[Event]) -> list[Ownership]:
    """The ownerships of a history, by their start."""
    deaths = {
        pid: event["at"] for event in reversed(events) if event["what"] == "killed" for pid in event["pids"]
    }
    found: dict[tuple[str, str, str, int], Ownership] = {}
    latest: dict[str, float] = {}
    for event in events:
        if event["what"] == "pulse":
            continue
        who = event.get("who")
        if who is not None:
            latest[who] = event["at"]
        if "token" in event:
            _follow(found, event)
    for one in found.values():
        if one.left is None and one.told is None and latest[one.who] <= one.last:
            one.end = max(one.end, min(one.deadline, deaths.get(one.pid, one.deadline)))
    return sorted((one for one in found.values() if one.start > 0), key=lambda one: one.start)


def _follow(found: dict[tuple[str, str, str, int], Ownership], event: Event) -> None:
    name = event["key"], event["owner"], event["who"], event["token"]
    one = found.get(name)
    if one is None:
        one = found[name] = Ownership(*name[:2], event["token"], event["who"], event["pid"], 0.0, 0.0)
    at = event["at"]
    one.limit, one.last = event.get("limit", one.limit), at
    if event["what"] == "held":
        one.start, one.end = one.start or at, at
        one.asked = one.asked or event.get("asked", at)
        one.deadline = max(one.deadline, event.get("deadline", 0.0))
    elif event["what"] in {"leaving", "end"}:
        one.left = at if one.left is None else one.left
    elif event["what"] == "told":
        one.told = at if one.told is None else one.told
    else:
        one.entries.append(event)
