"""First two beats and a running fleet. Then one beat, while the fleet is stopped for an hour."""

from __future__ import annotations

import sys
from functools import partial

from rich.console import Console

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Process, Processes
from examples.embedded.story import figures, run, wait_until
from examples.embedded.valkey import Valkey
from examples.periodic.catch_up import MINUTE, plain_sync, sync
from examples.periodic.counts import Counts, counts, final_counts, ticks
from examples.periodic.two_beats import HOLD, TICK, plain_report, report

TICKS = 5
AN_HOUR = 60  # ticks, one a minute


def periodic(console: Console, processes: Processes) -> bool:
    valkey = Valkey(processes)
    console.print(f"Two beats publish the same task every {TICK:g} s. lock_hold_at_least is {HOLD:g} s.\n")
    reports = _two_beats(_celery(processes, valkey, "two_beats"), valkey)
    _show_two_beats(console, *reports)
    console.print(
        "\nAll workers are stopped for an hour, and a beat publishes every minute.\n"
        f"Then a worker starts. (A minute takes {MINUTE:g} s here.)\n"
    )
    syncs = _catch_up(_celery(processes, valkey, "catch_up"), valkey)
    _show_catch_up(console, *syncs)
    return _one_run_a_tick(*reports) and _one_run_after_the_hour(*syncs)


def _celery(processes: Processes, valkey: Valkey, module: str) -> CeleryProcesses:
    env = {"APP": f"examples.periodic.{module}", "REDIS_URL": valkey.url}
    return CeleryProcesses(processes, "examples.periodic.counting", env)


def _two_beats(celery: CeleryProcesses, valkey: Valkey) -> tuple[Counts, Counts]:
    celery.start_workers(("worker-1", "worker-2"), "-c", "1")
    beats = [celery.start_beat(name) for name in ("beat-1", "beat-2")]
    for task in (plain_report.name, report.name):
        beats[0].wait_until(partial(_rest_after, TICKS, valkey, beats, task))
    _stop(*beats)
    return (
        final_counts(valkey.client, beats, plain_report.name),
        final_counts(valkey.client, beats, report.name),
    )


def _rest_after(times: int, valkey: Valkey, beats: list[Process], task: str) -> bool:
    """Whether each beat has ticked that often and has published all its ticks, so that it can stop."""
    task_counts = counts(valkey.client, beats, task)
    return min(task_counts.ticks) >= times and task_counts.published == sum(task_counts.ticks)


def _show_two_beats(console: Console, plain: Counts, locked: Counts) -> None:
    table = figures("ticks", "published", "runs", "skipped", "closest runs")
    for title, task in (("without the lock", plain), ("with LockedTask", locked)):
        both = "+".join(map(str, task.ticks))
        numbers = (task.published, len(task.runs), task.skipped)
        table.add_row(title, both, *map(str, numbers), f"{task.closest:.2f} s")
    console.print(table)


def _one_run_a_tick(plain: Counts, locked: Counts) -> bool:
    return len(plain.runs) >= plain.published and locked.skipped > 0 and locked.closest > HOLD / 2


def _catch_up(celery: CeleryProcesses, valkey: Valkey) -> tuple[Counts, Counts]:
    beat = celery.start_beat("beat")
    beat.wait_until(partial(_hour_is_over, valkey, beat))
    _stop(beat)
    celery.start_workers(("worker",), "-c", "1", "-Q", "catch_up")
    return (
        final_counts(valkey.client, [beat], plain_sync.name),
        final_counts(valkey.client, [beat], sync.name),
    )


def _show_catch_up(console: Console, plain: Counts, locked: Counts) -> None:
    table = figures("ticks", "published", "runs")
    for title, task in (("without the lock", plain), ('lock_from="publish"', locked)):
        table.add_row(title, *map(str, (*task.ticks, task.published, len(task.runs))))
    console.print(table)


def _one_run_after_the_hour(plain: Counts, locked: Counts) -> bool:
    return len(plain.runs) >= AN_HOUR and (locked.published, len(locked.runs)) == (1, 1)


def _hour_is_over(valkey: Valkey, beat: Process) -> bool:
    published = counts(valkey.client, [beat], plain_sync.name).published
    return min(published, ticks(beat, sync.name)) >= AN_HOUR


def _stop(*beats: Process) -> None:
    for beat in beats:
        beat.stop()
    wait_until(lambda: not any(beat.running for beat in beats), "the end of beat")


if __name__ == "__main__":
    sys.exit(run(periodic, "beats are publishing …"))
