"""Judges histories in the manner of Jepsen's lock models. Pure functions: events in, verdicts out.

A known and documented exception (docs/deployments.md, docs/faults.md) is a verdict too: it has the name of
its excuse, and counts in the figures, not as a violation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.nemesis.history import PULSE, Event, Ownership, ownerships

#: How late a process may be on a loaded machine, beyond the times in which it did not run at all.
SLACK = 2.0
#: How long after the end of a fault a key may stay untaken, beyond its lease.
RECOVERY = 15.0
#: How long an answer may take until the client gives up for good: two tries with a connection and an answer.
GIVEN_UP = 4.0
_NEVER = float("inf")


@dataclass(frozen=True)
class Verdict:
    """Something that must not be, unless an excuse names the documented exception that it is."""

    check: str
    text: str
    begin: float
    end: float
    key: str | None = None
    excuse: str | None = None

    def __str__(self) -> str:
        return f"{self.check}: {self.text}" + (f" (excused: {self.excuse})" if self.excuse else "")


@dataclass(frozen=True)
class Fault:
    """A time in which something was wrong. `forgets` says that the lock server may forget what it granted."""

    name: str
    begin: float
    end: float
    forgets: str | None = None
    kind: str = ""  #: "lock server", "network" or "process"


@dataclass(frozen=True)
class History:
    """The events of one run, and what the checkers need of them."""

    events: list[Event]
    ttl: float
    owned: list[Ownership] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def of(cls, events: list[Event], ttl: float) -> History:
        return cls(events, ttl, ownerships(events), faults(events))

    def by_key(self) -> dict[str, list[Ownership]]:
        found: dict[str, list[Ownership]] = defaultdict(list)
        for one in self.owned:
            found[one.key].append(one)
        return found

    def named(self, *names: str) -> list[Event]:
        return [event for event in self.events if event["what"] in names]


def faults(events: list[Event]) -> list[Fault]:
    """Every fault with its begin and its end; one that never ended lasts until the last event."""
    found, open_ = [], {}
    for event in events:
        if event["what"] == "fault":
            open_[event["number"]] = event
        elif event["what"] == "fault over":
            found.append(_fault(open_.pop(event["number"]), event["at"]))
    return sorted(
        found + [_fault(event, events[-1]["at"]) for event in open_.values()], key=lambda one: one.begin
    )


def _fault(event: Event, end: float) -> Fault:
    return Fault(event["name"], event["at"], end, event.get("forgets"), event.get("kind", ""))


def exclusive(history: History) -> Iterator[Verdict]:
    """No more than `limit` holders of a key rely on it at once. The kernel's file locks agree."""
    for key, line in history.by_key().items():
        inside: list[Ownership] = []
        for one in line:
            inside = [other for other in inside if other.end > one.start]
            if len(inside) >= min([one.limit, *(other.limit for other in inside)]):
                begin, end = one.start, min(other.end for other in [*inside, one])
                excuse = _forgotten(history, inside[0], one)
                others = "; ".join(map(str, inside))
                text = f"{one}; at the same time {others}"
                yield Verdict("exclusive", text, begin, max(begin, end), key, excuse)
            inside.append(one)
    yield from _kernel(history)


def _kernel(history: History) -> Iterator[Verdict]:
    """A holder that finds the file of its key locked has a predecessor that lost its lock and goes on."""
    lines, deaths = history.by_key(), _deaths(history)
    for event in history.named("conflict"):
        at = event["at"]
        there = [
            one
            for one in lines.get(event["key"], [])
            if one.start < at < min(one.left or _NEVER, deaths.get(one.pid, _NEVER))
            and one.token != event["token"]
        ]
        if not there:
            text = f"{event['owner']} found the file of {event['key']} locked, and no holder was there"
            yield Verdict("exclusive", text, at, at, event["key"])


def _deaths(history: History) -> dict[int, float]:
    return {pid: event["at"] for event in history.named("killed") for pid in event["pids"]}


def told(history: History) -> Iterator[Verdict]:
    """A holder that lost its lock knows it before its successor starts.

    If the lock server forgot the lock, it knows after a third of the lease. A process that does not run is
    told when it runs again.
    """
    pulses = _pulses(history)
    for key, line in history.by_key().items():
        for place, one in enumerate(line):
            if one.limit > 1:
                continue
            successor = next((other for other in line[place + 1 :] if other.token > one.token), None)
            known = min(one.left or _NEVER, one.told or _NEVER)
            if successor is None or known <= successor.start or one.last < successor.start:
                continue
            excuse = _forgotten(history, one, successor)
            runs = _next(pulses.get(one.pid, []), successor.start)
            allowed = runs + SLACK + (history.ttl / 3 if excuse else 0)
            if known > allowed:
                seconds = known - successor.start
                text = f"{one} did not know that {successor.owner} had it, for {seconds:.2f} s"
                yield Verdict("told", text, successor.start, allowed, key)


def _pulses(history: History) -> dict[int, list[float]]:
    found = defaultdict(list)
    for event in history.events:
        if event["what"] == "pulse":
            found[event["pid"]].append(event["at"])
    return found


def _next(moments: list[float], at: float) -> float:
    place = bisect_left(moments, at)
    return moments[place] if place < len(moments) else _NEVER


def reentrant(history: History) -> Iterator[Verdict]:
    """A holder enters again without waiting: one level deeper each time, under the same token."""
    for one in history.owned:
        for event in one.entries:
            wrong = _wrong_entry(event)
            if wrong:
                yield Verdict("reentrant", f"{one} {wrong}", event["at"], event["at"], one.key)


def _wrong_entry(event: Event) -> str | None:
    if event["what"] == "refused":
        return f"could not enter again: {event['why']}"
    if event["what"] == "entered" and (event["depth"], event["token"]) != (event["before"] + 1, event["was"]):
        return f"was at depth {event['before']} under {event['was']} and entered to depth {event['depth']}"
    if event["what"] == "exited" and event["depth"] != event["before"] - 1:
        return f"left from depth {event['before']} to depth {event['depth']}"
    return None


def fenced(history: History) -> Iterator[Verdict]:
    """Tokens grow in the order of the ownerships of a key, and no two ownerships have the same."""
    for key, line in history.by_key().items():
        for first, second in pairwise(sorted(line, key=lambda one: one.token)):
            at = second.start
            if first.token == second.token:
                yield Verdict("fenced", f"one token for two: {first}; {second}", at, at, key)
            elif second.end < first.asked:
                yield Verdict("fenced", f"a token went back: {second}; then {first}", at, first.start, key)


def stuck(history: History) -> Iterator[Verdict]:
    """After the last fault every key can be taken, Redis holds no lock, and every Redis key has an end."""
    for event in history.named("probe"):
        if not event["taken"]:
            text = f"{event['key']} could not be taken within {event['seconds']:.1f} s: {event.get('why')}"
            yield Verdict("stuck", text, event["at"] - event["seconds"], event["at"], event["key"])
    for event in history.named("ended badly"):
        yield Verdict("stuck", f"{event['name']}: {event['why']}", event["at"], event["at"])
    for event in history.named("leftovers"):
        if event["names"]:
            text = f"still in Redis: {', '.join(event['names'])}"
            yield Verdict("stuck", text, event["at"], event["at"])
        if event["endless"]:
            yield Verdict(
                "stuck", f"without an expiry: {', '.join(event['endless'])}", event["at"], event["at"]
            )


def recovered(history: History) -> Iterator[Verdict]:
    """After each fault, or several at once, every key is taken again within the lease and a bound."""
    keys = sorted({one.key for one in history.owned})
    for quiet in quiet_times(history):
        begin, end, names = quiet
        for key, seconds in _waits(history, keys, begin).items():
            if (
                begin + seconds > min(end, begin + history.ttl + RECOVERY)
                and end - begin > history.ttl + SLACK
            ):
                text = f"{key} was not taken within {min(seconds, end - begin):.1f} s after {names}"
                end_of_wait = min(end, begin + seconds)
                excuse = _overloaded(history, begin, end_of_wait)
                yield Verdict("recovered", text, begin, end_of_wait, key, excuse)


def _overloaded(history: History, begin: float, end: float) -> str | None:
    """Whether the nemesis itself, which is the network too, did not run for a tenth of the time."""
    own = {event["pid"] for event in history.named("fault")}
    for pid, pulses in _pulses(history).items():
        if pid in own:
            inside = [begin, *(at for at in pulses if begin < at < end), end]
            late = sum(max(0.0, after - before - 2 * PULSE) for before, after in pairwise(inside))
            if late > (end - begin) / 10:
                return "the machine was overloaded, and the nemesis did not forward in time"
    return None


def recoveries(history: History) -> dict[str, list[float]]:
    """For each fault that ended alone: how long the slowest key waited after its end, each time."""
    keys = sorted({one.key for one in history.owned})
    found: dict[str, list[float]] = defaultdict(list)
    for begin, end, names in quiet_times(history):
        waits = _waits(history, keys, begin)
        if waits and begin + max(waits.values()) <= end:
            found[names].append(max(waits.values()))
    return found


def quiet_times(history: History) -> Iterator[tuple[float, float, str]]:
    """The times without a fault, and the names of the faults that ended with their beginning."""
    over = max((event["at"] for event in history.named("calm")), default=_NEVER)
    group: list[Fault] = []
    for fault in history.faults:
        if group and fault.begin > max(one.end for one in group):
            yield max(one.end for one in group), fault.begin, _names(group)
            group = []
        group.append(fault)
    if group:
        yield max(one.end for one in group), over, _names(group)


def _names(group: list[Fault]) -> str:
    return " + ".join(sorted({fault.name for fault in group}))


def _waits(history: History, keys: list[str], begin: float) -> dict[str, float]:
    """How long after `begin` each key was taken: at once if its holder still held it."""
    waits = dict.fromkeys(keys, _NEVER)
    for one in history.owned:
        if one.end >= begin:
            waits[one.key] = min(waits[one.key], max(0.0, one.start - begin))
    return waits


def completed(history: History) -> Iterator[Verdict]:
    """Every published task completes: once, or again where a documented exception made it unavoidable."""
    published = {event["id"]: event for event in history.named("published")}
    ends, given_up = defaultdict(list), defaultdict(list)
    for event in history.named("end"):
        ends[event["id"]].append(event)
    for event in history.named("failed"):
        given_up[event["id"]].append(event)
    last = history.events[-1]["at"] if history.events else 0.0
    waiting = {task for event in history.named("still waiting") for task in event["tasks"]}
    waited = max((event["at"] for event in history.named("calm")), default=0.0)
    for task, event in published.items():
        runs, at = ends.get(task, []), event["at"]
        if not runs and not given_up.get(task):
            excuse = _overloaded(history, waited, last) if task in waiting else None
            text = f"task {task} never completed" + (
                ", and still waits at the broker" if task in waiting else ""
            )
            yield Verdict("completed", text, at, last, event["key"], excuse)
        elif not runs:
            reasons = sorted({one["why"] for one in given_up[task]})
            excuse = "the task's own time limit" if all(map(_is_own_limit, reasons)) else None
            text = f"task {task} failed: {', '.join(reasons)}"
            yield Verdict("completed", text, at, given_up[task][-1]["at"], event["key"], excuse)
        for first, second in pairwise(runs):
            text = f"task {task} completed in {first['pid']} and again in {second['pid']}"
            excuse = _why_again(history, first, second)
            yield Verdict("completed", text, first["at"], second["at"], event["key"], excuse)


def _is_own_limit(reason: str) -> bool:
    return reason.startswith("SoftTimeLimitExceeded")


def _why_again(history: History, first: Event, second: Event) -> str | None:
    """The documented reason why a task that had completed ran again."""
    began = next(
        (one.start for one in history.owned if one.owner == first["owner"] and one.start <= first["at"]),
        first["at"],
    )
    mine = [one for one in history.owned if one.owner.endswith(f":{first['id']}")]
    family = {first["pid"], first.get("parent")}
    killed = [event["at"] for event in history.named("killed") if family & set(event["pids"])]
    if any(first["at"] - SLACK <= at <= second["at"] for at in killed):
        return "killed after its last line, before the message was acknowledged"
    if any(fault.forgets and fault.begin <= second["at"] and fault.end >= began for fault in history.faults):
        return "the lock server forgot"
    if any(one.told is not None for one in mine):
        return "a run of the task had lost its lock"
    around = [
        fault
        for fault in history.faults
        if fault.begin <= first["at"] + GIVEN_UP and fault.end >= first["at"] - GIVEN_UP
    ]
    if any(fault.kind in {"network", "lock server"} for fault in around):
        return "the lock server did not answer at the end of the first run"
    suspended = [event for event in history.named("suspended") if family & set(event["pids"])]
    if any(began - GIVEN_UP <= event["at"] <= second["at"] for event in suspended):
        return "its worker stood still while the broker redelivered"
    return None


def allowed(history: History) -> Iterator[Verdict]:
    """The user with the documented least rights was refused nothing."""
    for event in history.named("refused by the server"):
        at = event["at"]
        if event["commands"]:
            text = f"the server refused {', '.join(event['commands'])}"
            yield Verdict("allowed", text, at, at)


def _forgotten(history: History, first: Ownership, second: Ownership) -> str | None:
    """The documented exception under which the server granted the key to `second` although `first` had it."""
    for fault in history.faults:
        if (
            fault.forgets
            and first.start <= fault.end
            and fault.begin <= second.start <= fault.end + history.ttl
        ):
            return fault.forgets
    return None


CHECKS: tuple[Callable[[History], Iterator[Verdict]], ...] = (
    exclusive,
    told,
    reentrant,
    fenced,
    stuck,
    recovered,
    completed,
    allowed,
)


def check(history: History) -> list[Verdict]:
    """All verdicts, violations first."""
    verdicts = [verdict for check_one in CHECKS for verdict in check_one(history)]
    return sorted(verdicts, key=lambda verdict: (verdict.excuse is not None, verdict.begin))


def violations(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.excuse is None]


def excused(verdicts: list[Verdict]) -> Counter[str]:
    return Counter(f"{verdict.check}: {verdict.excuse}" for verdict in verdicts if verdict.excuse)
