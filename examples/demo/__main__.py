"""Plays both rounds on one fleet. Prints timelines and figures, and writes a picture."""

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

INTRODUCTION = f"""\
Every {TICK_SECONDS:g} s, {len(BEATS)} beat processes publish the same periodic task.
{len(WORKERS)} workers run it. One run takes {RUN_SECONDS:g} s.
After the second tick, kill -9 ends a worker in the middle of a run.
There are two rounds: without the lock, and with LockedTask (about 40 s).
"""


def main() -> int:
    """Returns the exit code: 0 if the lock held, 1 if it failed, 130 after Ctrl-C."""
    return run(_demo)


def _demo(console: Console, processes: Processes) -> bool:
    plain, locked = _both_rounds(console, processes)
    _show(console, plain, locked)
    return holds(locked)


def _both_rounds(console: Console, processes: Processes) -> tuple[Outcome, Outcome]:
    with Narrator(console) as narrator:
        console.print(INTRODUCTION)
        fleet = Fleet(processes)
        narrator.say(f"Valkey is running on port {fleet.port}, and {len(WORKERS)} workers are ready")
        return play(PLAIN, fleet, narrator), play(LOCKED, fleet, narrator)


def _show(console: Console, plain: Outcome, locked: Outcome) -> None:
    outcomes = (plain, locked)
    write_picture(outcomes, PICTURE)
    console.print()
    console.print(timelines(outcomes, min(console.width, WIDEST)), soft_wrap=True)
    console.print(f"\nThe same timelines as a picture: {PICTURE}\n")
    console.print(comparison(outcomes))
    console.print("\nThe killed run counts as a run, and so does the second run of its task.")
    console.print(takeover(locked, LOCK_TTL))
    console.print(verdict(plain, locked))


if __name__ == "__main__":
    sys.exit(main())
