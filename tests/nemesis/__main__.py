"""The nemesis on demand: one world after the other, each on each kind of lock server, until the time is over.

Each round has the next seed, and lasts for --round seconds and the time that its load needs to end. With
--world and --setup, only these rounds are run; --only chooses faults by their names; --mutation puts a defect
of `mutations` into the clients. A violation makes the status 1, and leaves pictures, events and logs in
nemesis-results.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.nemesis.checkers import excused
from tests.nemesis.history import clock
from tests.nemesis.lock_servers import SETUPS
from tests.nemesis.mutations import MUTATIONS
from tests.nemesis.nemesis import Result, plague
from tests.nemesis.worlds import FleetWorld, PatientWorld, RLockWorld, World

WORLDS: dict[str, type[World]] = {world.name: world for world in (RLockWorld, PatientWorld, FleetWorld)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--round", type=float, default=45)
    parser.add_argument("--world", choices=WORLDS, action="append")
    parser.add_argument("--setup", choices=SETUPS, action="append")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--mutation", choices=MUTATIONS, default="")
    chosen = parser.parse_args()
    rounds = itertools.cycle(itertools.product(chosen.setup or SETUPS, chosen.world or WORLDS))
    end, results = clock() + 60 * chosen.minutes, []
    for seed, (setup, world) in zip(itertools.count(chosen.seed), rounds, strict=False):
        if clock() >= end:
            break
        seconds = min(chosen.round, end - clock())
        with SETUPS[setup]() as servers, WORLDS[world](servers, seed, mutation=chosen.mutation) as running:
            results.append(plague(running, seconds, only=chosen.only))
        print(results[-1], flush=True)
    print(summary(results))
    return any(result.violations for result in results)


def summary(results: Sequence[Result]) -> str:
    """The figures of all rounds, as tables in Markdown."""
    lines = ["", "| world | lock server | seeds | minutes | ownerships | tasks | faults | violations |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|")
    groups = defaultdict(list)
    for result in results:
        groups[result.world, result.setup].append(result)
    for (world, setup), group in groups.items():
        lines.append(_row(world, setup, ", ".join(str(one.seed) for one in group), group))
    lines.append(_row("all", "", "", results))
    allowed = sum((excused(result.verdicts) for result in results), Counter[str]())
    lines += ["", *(f"allowed by the docs, {count}: {why}" for why, count in sorted(allowed.items()))]
    waits = defaultdict(list)
    for result in results:
        for name, seconds in result.recoveries.items():
            if " + " not in name:
                waits[name] += seconds
    lines += [
        "",
        "| fault | times alone | until each key was taken again, s: median | worst |",
        "|---|--:|--:|--:|",
    ]
    for name, seconds in sorted(waits.items()):
        middle = sorted(seconds)[len(seconds) // 2]
        lines.append(f"| {name} | {len(seconds)} | {middle:.1f} | {max(seconds):.1f} |")
    return "\n".join(lines)


def _row(world: str, setup: str, seeds: str, group: Sequence[Result]) -> str:
    figures = (
        f"{sum(one.seconds for one in group) / 60:.1f}",
        f"{sum(one.ownerships for one in group):,}",
        f"{sum(one.tasks for one in group):,}",
        f"{sum(sum(one.faults.values()) for one in group):,}",
        f"{sum(len(one.violations) for one in group)}",
    )
    return f"| {' | '.join((world, setup, seeds, *figures))} |"


if __name__ == "__main__":
    sys.exit(main())
