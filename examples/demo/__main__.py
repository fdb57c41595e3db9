"""The story: two rounds on one fleet, then the timelines, a picture and the figures."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from examples.demo.app import LOCK_TTL, RUN_SECONDS, TICK_SECONDS
from examples.demo.comparison import comparison, holds, takeover, verdict
from examples.demo.fleet import BEATS, WORKERS, Fleet
from examples.demo.measuring import Outcome, Round
from examples.demo.narration import Narrator
from examples.demo.picture import write_picture
from examples.demo.rounds import play
from examples.demo.timeline import timelines
from examples.embedded.processes import Processes
from examples.embedded.story import run

PICTURE = Path("demo-timeline.svg")
WIDEST = 100

PLAIN = Round("without_lock", "without the lock", locked=False)
LOCKED = Round("with_lock", "with LockedTask", locked=True)

INTRODUCTION = (
    f"A periodic task that runs {RUN_SECONDS:g} s: {len(BEATS)} beats publish it every {TICK_SECONDS:g} s, "
    f"{len(WORKERS)} workers run it, and one of them is killed. "
    "First without the lock, then with LockedTask; about 40 s in all.\n"
)


def main() -> int:
    """The exit code: 0 when the lock held, 1 when it failed, 130 after Ctrl-C."""
    return run(_demo)


def _demo(console: Console, processes: Processes) -> bool:
    plain, locked = _both_rounds(console, processes)
    _show(console, plain, locked)
    return holds(locked)


def _both_rounds(console: Console, processes: Processes) -> tuple[Outcome, Outcome]:
    with Narrator(console) as narrator:
        console.print(INTRODUCTION)
        fleet = Fleet(processes)
        narrator.say(f"Valkey is up on port {fleet.port}, {len(WORKERS)} workers are ready")
        return play(PLAIN, fleet, narrator), play(LOCKED, fleet, narrator)


def _show(console: Console, plain: Outcome, locked: Outcome) -> None:
    outcomes = (plain, locked)
    write_picture(outcomes, PICTURE)
    console.print()
    console.print(timelines(outcomes, min(console.width, WIDEST)), soft_wrap=True)
    console.print(f"\nthe same as a picture: {PICTURE}\n")
    console.print(comparison(outcomes))
    console.print(f"\n{takeover(locked)} (lock_ttl is {LOCK_TTL} s)")
    console.print(verdict(plain, locked))


if __name__ == "__main__":
    sys.exit(main())
