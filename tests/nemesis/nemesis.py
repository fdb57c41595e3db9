"""Inflicts faults on a world, as a seed decides, and judges what its processes wrote down."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.nemesis import timeline
from tests.nemesis.checkers import (
    RECOVERY,
    History,
    Verdict,
    check,
    excused,
    recoveries,
    violations,
)
from tests.nemesis.faults import FAULTS, FaultKind
from tests.nemesis.history import Tail, clock
from tests.nemesis.worlds import World
from tests.support.daemon import ROOT

#: Where the pictures of violations go.
PICTURES = ROOT / "nemesis-results"
MOST_SHOWN = 10


@dataclass
class Result:
    """What became of one run."""

    world: str
    setup: str
    seed: int
    seconds: float
    ownerships: int
    tasks: int
    faults: Counter[str]
    verdicts: list[Verdict]
    recoveries: dict[str, list[float]]
    history: History
    pictures: list[Path] = field(default_factory=list)

    @property
    def violations(self) -> list[Verdict]:
        return violations(self.verdicts)

    def __str__(self) -> str:
        tasks = f", {self.tasks} tasks" if self.tasks else ""
        lines = [
            (
                f"{self.world} on {self.setup}, seed {self.seed}: {self.seconds:.0f} s, "
                f"{self.ownerships} ownerships{tasks}, {sum(self.faults.values())} faults, "
                f"{len(self.violations)} violations"
            )
        ]
        lines += [f"  allowed by the docs, {count}: {why}" for why, count in excused(self.verdicts).items()]
        for number, violation in enumerate(self.violations[:MOST_SHOWN]):
            lines.append(f"  VIOLATION {violation}")
            if number < len(self.pictures):
                lines += [f"    {line}" for line in timeline.excerpt(self.history, violation)]
                lines.append(f"    picture: {self.pictures[number]}")
        return "\n".join(lines)


class Nemesis:
    """Runs one fault after another, now and then two at once."""

    def __init__(self, world: World, seed: int, only: Sequence[str] = (), *, mild: bool = False) -> None:
        self._world = world
        self._choice = random.Random(f"nemesis-{seed}")
        self._kinds = [
            kind
            for kind in FAULTS
            if kind.fits(world) and (not only or kind.name in only) and (kind.is_mild or not mild)
        ]
        if not self._kinds:
            raise ValueError(f"no such fault in this world: {only}")
        self._line: list[FaultKind] = []
        self._number = 0
        self._tail = Tail(world.directory)
        self.done: Counter[str] = Counter()

    def run(self, until: float) -> None:
        """Inflict faults until then. After each, wait until every key was taken again."""
        while clock() < until:
            kinds = [self._next()]
            if self._choice.random() < 0.25:
                other = self._next()
                if other.kind != kinds[0].kind:  # two of a kind could undo each other
                    kinds.append(other)
            self._inflict(kinds)
            self._await_recovery()
            _sleep(self._choice.uniform(0.1, 0.8))
        self._world.recorder.write("calm")

    def _next(self) -> FaultKind:
        """Every kind comes once before one comes again."""
        if not self._line:
            self._line = self._kinds.copy()
            self._choice.shuffle(self._line)
        return self._line.pop()

    def _inflict(self, kinds: Sequence[FaultKind]) -> None:
        running = {self._begin(kind): kind for kind in kinds}
        due = dict.fromkeys(running, clock())
        while due:
            act = min(due, key=due.__getitem__)
            _sleep(due[act] - clock())
            seconds = next(act, None)
            if seconds is None:
                del due[act]
            else:
                due[act] = clock() + seconds

    def _begin(self, kind: FaultKind) -> Iterator[float]:
        self.done[kind.name] += 1
        self._number += 1
        return self._recorded(self._number, kind)

    def _recorded(self, number: int, kind: FaultKind) -> Iterator[float]:
        write = self._world.recorder.write
        name = f"{self._world.name} {number}"
        forgets = self._world.servers.forgets.get(kind.name)
        write("fault", number=name, name=kind.name, kind=kind.kind, forgets=forgets)
        try:
            yield from kind.act(self._world, self._choice)
        finally:
            write("fault over", number=name)

    def _await_recovery(self) -> None:
        """Return when every key was taken since, or when the checker's bound is over."""
        begin = clock()
        bound = begin + self._world.ttl + RECOVERY + 1
        missing = set(self._world.keys)
        while missing and clock() < bound:
            _sleep(0.25)
            new = self._tail.new()
            missing -= {event["key"] for event in new if event["what"] == "held" and event["at"] > begin}


def _sleep(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def plague(
    world: World, seconds: float, *, only: Sequence[str] = (), mild: bool = False, pictures: Path = PICTURES
) -> Result:
    """Run the nemesis in a world that has been entered, let its load end, and judge."""
    began = clock()
    nemesis = Nemesis(world, world.seed, only, mild=mild)
    nemesis.run(began + seconds)
    world.finish()
    world.probe()
    history = History.of(world.events(), world.ttl)
    verdicts = check(history)
    result = Result(
        world=world.name,
        setup=world.servers.name,
        seed=world.seed,
        seconds=clock() - began,
        ownerships=len(history.owned),
        tasks=len(history.named("published")),
        faults=nemesis.done,
        verdicts=verdicts,
        recoveries=recoveries(history),
        history=history,
    )
    if result.violations:
        _keep(world, result, pictures)
    return result


def _keep(world: World, result: Result, folder: Path) -> None:
    """Draw the first violations, and keep the events and the logs of the processes beside them."""
    stem = f"{world.name}-{world.servers.name}-{world.seed}".replace(" ", "-")
    folder.mkdir(exist_ok=True)
    result.pictures = [
        timeline.draw(result.history, violation, folder / f"{stem}-{number}.svg")
        for number, violation in enumerate(result.violations[:5])
    ]
    events = map(json.dumps, result.history.events)
    (folder / f"{stem}.jsonl").write_text("\n".join(events) + "\n")
    for process in world.processes:
        (folder / f"{stem}-{process.name}.log").write_text(process.log)
