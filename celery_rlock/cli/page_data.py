"""What the exporter's page shows: the last survey of Redis, and what the workers' events said lately.

Everything here is bounded, however many locks and events there are, and however long their texts are.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from random import randrange
from time import time
from typing import Any

from celery_rlock.cli import rows
from celery_rlock.cli.survey import Survey
from celery_rlock.log import printable
from celery_rlock.server.failures import brief
from celery_rlock.server.lock_record import LockRecord
from celery_rlock.telemetry import events

#: The most locks that the exporter keeps from a survey, and the most that one answer has.
MOST_KEPT = 1000
MOST_ROWS = 200

#: The most events of each kind that the page lists.
MOST_EVENTS = 50

#: The charts have so many slots of so many seconds: half an hour.
SLOTS, SLOT = 60, 30.0

#: Longer texts are cut. A key of ours in Redis is shorter; what other programs write may be of any length.
LONGEST_TEXT = 500

#: An older survey, in seconds, is not worth showing while a new one takes a moment.
_STALE, _MOMENT = 5.0, 1.0

#: A slot with more times than this keeps a random sample of them.
_MOST_SAMPLES = 200

#: What a busy lock did to a task that will not run. A task that waits is no news.
_ENDED = {"fail": "failed", "reject": "rejected"}


def shown(text: object) -> str:
    """A text of a message or of Redis for people: cut, and every control character written out."""
    whole = str(text)
    return printable(whole[:LONGEST_TEXT]) + ("…" if len(whole) > LONGEST_TEXT else "")


@dataclass(frozen=True)
class Happening:
    """A task that its lock kept from running or being published, or a lock that was lost or unreachable."""

    at: float
    what: str  #: skipped, duplicate, superseded, replaced, failed, rejected, lost or unavailable
    task: str
    task_id: str
    key: str
    about: str  #: the holder, or the reason


@dataclass
class Slot:
    """The times of one slot of a chart."""

    count: int = 0
    longest: float = 0.0
    samples: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.longest = max(self.longest, seconds)
        if len(self.samples) < _MOST_SAMPLES:
            self.samples.append(seconds)
        elif (place := randrange(self.count)) < _MOST_SAMPLES:  # noqa: S311 - every time has the same chance
            self.samples[place] = seconds

    @property
    def weighted(self) -> list[tuple[float, float]]:
        """Each sample, and for how many times it stands."""
        return [(sample, self.count / len(self.samples)) for sample in self.samples]


class Chart:
    """Times of the last half hour, by slot."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}

    def add(self, at: float, seconds: float) -> None:
        self._slots.setdefault(int(at // SLOT), Slot()).add(seconds)
        _forget_old(self._slots)

    def as_json(self, now: float) -> dict[str, Any]:
        """Oldest slot first; None for a slot without times."""
        last = int(now // SLOT)
        found = [self._slots.get(number) for number in range(last - SLOTS + 1, last + 1)]
        filled = [slot for slot in found if slot]
        return {
            "count": sum(slot.count for slot in filled),
            "median": _median(pair for slot in filled for pair in slot.weighted),
            "longest": max((slot.longest for slot in filled), default=None),
            "slots": [slot and [slot.count, _median(slot.weighted), slot.longest] for slot in found],
        }


def _forget_old(slots: dict[int, Any]) -> None:
    oldest = int(time() // SLOT) - SLOTS
    for number in [number for number in slots if number <= oldest]:
        del slots[number]


def _median(weighted: Iterable[tuple[float, float]]) -> float | None:
    pairs = sorted(weighted)
    half, passed = sum(weight for _, weight in pairs) / 2, 0.0
    for value, weight in pairs:
        passed += weight
        if passed >= half:
            return value
    return None


class PageData:
    """Receives surveys and events from the exporter's threads, and answers the page's requests."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._looked = threading.Condition(self._mutex)
        self._looks = 0  #: how many surveys have ended, well or not
        self._survey = Survey()
        self._rows: list[dict[str, Any]] = []
        self._surveyed_at: float | None = None
        self._error: str | None = None
        self._wait, self._hold = Chart(), Chart()
        self._happened: dict[str, deque[Happening]] = {}
        self._counts: dict[int, Counter[str]] = {}  #: by slot, also of what is not listed any more
        self.wanted = threading.Event()  #: a page has asked since the last survey
        self.hears = False  #: the exporter is connected to the broker

    def show(self, survey: Survey) -> None:
        """Show this survey from now on."""
        found = [_row_with_waiters(record, survey) for record in survey.records]
        with self._mutex:
            self._survey, self._rows = survey, found
            self._surveyed_at, self._error = time(), None
            self._end_look()

    def fail(self, error: Exception) -> None:
        """Redis did not answer: say so beside the last survey."""
        with self._mutex:
            self._error = brief(error)
            self._end_look()

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """One function for each type of event, for Celery's event receiver."""
        return {
            events.ACQUIRED: lambda event: self._time(self._wait, event, "waited"),
            events.RELEASED: lambda event: self._time(self._hold, event, "held"),
            events.SKIPPED: lambda event: self._happens("skipped", event, "holder"),
            events.BUSY: self._on_busy,
            events.LOST: lambda event: self._happens("lost", event, "reason"),
            events.UNAVAILABLE: lambda event: self._happens("unavailable", event, "reason"),
            events.DUPLICATE: lambda event: self._happens("duplicate", event, "holder"),
            events.SUPERSEDED: lambda event: self._happens("superseded", event, "by"),
            events.REPLACED: lambda event: self._happens("replaced", event, "by"),
        }

    def as_json(self, wanted: str = "") -> dict[str, Any]:
        """Everything that the page shows; of the locks and events only those with this text.

        While no page was open the last survey may be old. Then this waits a moment for a new one.
        """
        self.wanted.set()
        text = wanted.casefold()
        with self._mutex:
            if self._surveyed_at is not None and time() - self._surveyed_at > _STALE:
                before = self._looks
                self._looked.wait_for(lambda: self._looks > before, _MOMENT)
            now = time()
            matching = [row for row in self._rows if _has(text, _texts_of(row))]
            happened = [each for kind in self._happened.values() for each in kind]
            _forget_old(self._counts)
            return {
                "at": now,
                "hears": self.hears,
                "survey": self._totals(),
                "locks": matching[:MOST_ROWS],
                "left_out": self._left_out(len(matching[MOST_ROWS:])),
                "lately": [
                    asdict(each)
                    for each in sorted(happened, key=lambda each: -each.at)
                    if _has(text, (each.key, each.task, each.task_id, each.about))
                ],
                "counts": sum(self._counts.values(), Counter()),
                "slot": SLOT,
                "wait": self._wait.as_json(now),
                "hold": self._hold.as_json(now),
            }

    def _end_look(self) -> None:
        self._looks += 1
        self._looked.notify_all()

    def _time(self, chart: Chart, event: dict[str, Any], name: str) -> None:
        at, seconds = _moment(event), events.seconds_in(event, name)
        with self._mutex:
            chart.add(at, seconds)

    def _on_busy(self, event: dict[str, Any]) -> None:
        if (what := _ENDED.get(str(event.get("action")))) is not None:
            self._happens(what, event, "holder")

    def _happens(self, what: str, event: dict[str, Any], about: str) -> None:
        texts = [shown(event.get(name) or "") for name in ("name", "uuid", "key", about)]
        happening = Happening(_moment(event), what, *texts)
        with self._mutex:
            self._happened.setdefault(what, deque(maxlen=MOST_EVENTS)).append(happening)
            self._counts.setdefault(int(happening.at // SLOT), Counter())[what] += 1
            _forget_old(self._counts)

    def _totals(self) -> dict[str, Any]:
        states: Counter[str] = Counter()
        for (_, state), count in self._survey.locks.items():
            states[state] += count
        return {
            "at": self._surveyed_at,
            "error": self._error,
            "complete": self._survey.is_complete,
            "states": states,
            "waiters": self._survey.waiters.total(),
        }

    def _left_out(self, surplus: int) -> dict[str, int]:
        """Locks that match and are not in this answer; and locks that were counted but not kept."""
        return {"matching": surplus, "not_searched": self._survey.locks.total() - len(self._rows)}


def row(record: LockRecord) -> dict[str, Any]:
    """The lock as `ls --json` has it, with its texts as people may see them."""
    found = rows.as_json(record)
    return found | {
        name: shown(found[name]) for name in ("key", "task", "worker", "task_id", "owner", "replaced_by")
    }


def _row_with_waiters(record: LockRecord, survey: Survey) -> dict[str, Any]:
    waiters = survey.waiting.get(record.redis_keys.lock, ())
    in_line = [{"task_id": shown(each.task_id), "waits_for": round(each.waits_for, 3)} for each in waiters]
    return row(record) | {"in_line": in_line}


def _texts_of(row: dict[str, Any]) -> Iterator[str]:
    yield from (row[name] for name in ("key", "task", "task_id", "worker"))
    yield from (waiter["task_id"] for waiter in row["in_line"])


def _has(wanted: str, texts: Iterable[str]) -> bool:
    return not wanted or any(wanted in text.casefold() for text in texts)


def _moment(event: dict[str, Any]) -> float:
    """When it happened, by the worker's clock, but never in the future."""
    return min(events.seconds_in(event, "timestamp"), time())
