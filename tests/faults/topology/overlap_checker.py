"""Counts the moments in which two holders of one key both believed in their lock.

Processes take locks behind Sentinel while a nemesis freezes, kills and switches the primary. Each process
writes down what it believed, by the machine's monotonic clock, into a file of its own. To run it by hand:

    python -m tests.faults.topology.overlap_checker --setup plain --seed 1 --seconds 60
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.faults.topology.overlap_holder import Plan
from tests.faults.topology.overlap_nemesis import ConfiguredSetup, Nemesis, PersistentServer
from tests.support.daemon import Daemon
from tests.support.sentinel import SentinelSetup

PROCESSES = 3

#: (what was confirmed, when it was sent, when the answer came, the port of the server)
Confirmation = tuple[str, float, float, int]


@dataclasses.dataclass(frozen=True)
class Ownership:
    """A time in which one holder believed in its lock, and what servers had confirmed to it."""

    key: str
    owner: str
    token: int
    start: float
    end: float
    confirmed: tuple[Confirmation, ...] = ()


@dataclasses.dataclass(frozen=True)
class Overlap:
    first: Ownership
    second: Ownership

    @property
    def start(self) -> float:
        return max(self.first.start, self.second.start)

    @property
    def seconds(self) -> float:
        return min(self.first.end, self.second.end) - self.start


def overlaps(ownerships: list[Ownership]) -> list[Overlap]:
    """Every pair of ownerships of one key that shared a moment."""
    by_key: dict[str, list[Ownership]] = defaultdict(list)
    for ownership in sorted(ownerships, key=lambda one: one.start):
        by_key[ownership.key].append(ownership)
    found = []
    for line in by_key.values():
        for place, first in enumerate(line):
            for second in line[place + 1 :]:
                if second.start >= first.end:
                    break
                found.append(Overlap(first, second))
    return found


def read(directory: Path) -> tuple[list[Ownership], Counter[str]]:
    """What the holders wrote: the ownerships, and how many events of each kind there were."""
    events: list[dict[str, Any]] = []
    for path in directory.glob("holder-*.jsonl"):
        events += [json.loads(line) for line in path.read_text().splitlines()]
    confirmed: dict[tuple[str, str], list[Confirmation]] = defaultdict(list)
    for event in sorted(events, key=lambda one: one.get("sent", 0)):
        if event["what"] in {"acquire", "renew"}:
            confirmation = (event["what"], event["sent"], event["got"], event["port"])
            confirmed[event["key"], event["owner"]].append(confirmation)
    beliefs = [event for event in events if event["what"] == "belief"]
    ownerships = [_ownership(event, confirmed[event["key"], event["owner"]]) for event in beliefs]
    return ownerships, Counter(event["what"] for event in events)


def _ownership(belief: dict[str, Any], confirmed: list[Confirmation]) -> Ownership:
    start, end = belief["start"], belief["end"]
    taken = max((sent for what, sent, got, _ in confirmed if what == "acquire" and got <= start), default=0.0)
    mine = tuple(one for one in confirmed if taken <= one[1] and one[2] <= end)
    return Ownership(belief["key"], belief["owner"], belief["token"], start, end, mine)


class History:
    """When each server was started and promoted, and when a sentinel named it, by the servers' logs."""

    _LINE = re.compile(r"^\d+:\w (\d+ \w+ \d+ \d+:\d+:\d+\.\d+) . (.*)$", re.MULTILINE)

    def __init__(self, setup: SentinelSetup) -> None:
        self._ahead = time.monotonic() - time.time()  # logs have the wall clock
        self.promoted: list[tuple[float, int]] = []
        self.started: list[tuple[float, int]] = []
        self.named: list[tuple[float, int]] = []
        for server in setup.servers:
            for at, text in self._lines(server.log):
                if re.match("(MASTER|PRIMARY) MODE enabled", text):
                    self.promoted.append((at, server.port))
                elif "oO0OoO0OoO0Oo" in text:  # the banner that a server writes when it starts
                    self.started.append((at, server.port))
        for node in setup.sentinels:
            for at, text in self._lines(node.log):
                if text.startswith("+failover-state-wait-promotion"):
                    self.promoted.append((at, int(text.split()[4])))
                elif text.startswith("+switch-master"):
                    self.named.append((at, int(text.split()[5])))
        self.promoted.sort()

    def classify(self, overlap: Overlap) -> str:
        """Why both believed."""
        for ownership in (overlap.first, overlap.second):
            for what, sent, got, port in reversed(ownership.confirmed):
                before = [event for event in self.promoted if event[0] <= got]
                if before and before[-1][1] != port:
                    at, new = before[-1]
                    known = any(named == new and at <= when <= sent for when, named in self.named)
                    return (
                        f"old primary, {'after' if known else 'before'} a sentinel named the new one ({what})"
                    )
        what, sent, _, port = overlap.first.confirmed[-1]
        _, _, granted, other_port = overlap.second.confirmed[0]
        if port != other_port:
            return f"not replicated ({what})"
        if any(server == port and sent <= at <= granted for at, server in self.started):
            return "restarted without its data"
        return "the same server granted both"

    def _lines(self, log: str) -> Iterator[tuple[float, str]]:
        for stamp, text in self._LINE.findall(log):
            at = datetime.strptime(stamp, "%d %b %Y %H:%M:%S.%f").timestamp()  # noqa: DTZ007 - local time
            yield at + self._ahead, text


@dataclasses.dataclass(frozen=True)
class Result:
    ownerships: int
    overlaps: list[Overlap]
    reasons: Counter[str]
    unavailable: int
    faults: Counter[str]
    longest_pause: float

    def __str__(self) -> str:
        summary = (
            f"{self.ownerships} ownerships, {len(self.overlaps)} overlaps, "
            f"{self.unavailable} times unavailable, longest pause {self.longest_pause:.1f} s, "
            f"faults: {dict(self.faults)}"
        )
        return "\n".join([summary, *(f"{count:5d}  {why}" for why, count in self.reasons.most_common())])


def check(
    setup: SentinelSetup, seed: int, seconds: float, *, replicas: int = 0, faults: tuple[str, ...] = ()
) -> Result:
    """Let processes take locks for so long while the nemesis is at work, and count."""
    nemesis = Nemesis(setup, seed, faults)
    with tempfile.TemporaryDirectory(prefix="rlock-overlaps-") as directory:
        plan = Plan(setup.url, directory, seed, seconds, replicas=replicas)
        holders = [Holder(dataclasses.replace(plan, seed=seed * 100 + number)) for number in range(PROCESSES)]
        end = time.monotonic() + seconds
        try:
            for holder in holders:
                holder.launch()
            nemesis.run(end - 1)
            for holder in holders:
                assert holder.wait(seconds + 60) == 0, holder.log
        finally:
            for holder in holders:
                holder.stop(timeout=0)
        ownerships, events = read(Path(directory))
    found, history = overlaps(ownerships), History(setup)
    starts = sorted(one.start for one in ownerships)
    return Result(
        ownerships=len(ownerships),
        overlaps=found,
        reasons=Counter(map(history.classify, found)),
        unavailable=events["unavailable"],
        faults=Counter(nemesis.done),
        longest_pause=max((later - sooner for sooner, later in pairwise(starts)), default=0.0),
    )


class Holder(Daemon):
    """A process of `overlap_holder`."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("overlap-holder")
        self._plan = plan

    def command(self) -> list[str]:
        words = json.dumps(dataclasses.asdict(self._plan))
        return [sys.executable, "-m", "tests.faults.topology.overlap_holder", words]


def plain() -> ConfiguredSetup:
    """Servers without any settings: without persistence too."""
    return ConfiguredSetup()


def persistent() -> ConfiguredSetup:
    """Servers that have their data again after a restart."""
    return ConfiguredSetup(PersistentServer, appendonly="yes")


def documented() -> ConfiguredSetup:
    """The servers' settings of docs/deployments.md, section "A set-up without overlaps"."""
    return ConfiguredSetup(
        PersistentServer, appendonly="yes", min_replicas_to_write=1, min_replicas_max_lag=10
    )


SETUPS = {make.__name__: make for make in (plain, persistent, documented)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setup", choices=SETUPS, default="plain")
    parser.add_argument("--replicas", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    chosen = parser.parse_args()
    with SETUPS[chosen.setup]() as setup:
        print(check(setup, chosen.seed, chosen.seconds, replicas=chosen.replicas))


if __name__ == "__main__":
    main()
