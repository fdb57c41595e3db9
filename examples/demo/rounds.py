"""One round: both beats publish four ticks, one worker is killed, and all tasks are completed."""

from __future__ import annotations

import time
from collections import Counter

from examples.demo.app import RUN_SECONDS, TICK_SECONDS
from examples.demo.fleet import BEATS, Fleet
from examples.demo.measuring import Kill, Outcome, Round, Run, outcome_of
from examples.demo.narration import Narrator
from examples.demo.recording import events
from examples.embedded.processes import Process

TICKS = 4
KILL_AFTER_TICK = 2
# Kill a run of this age in seconds: it has surely started, and does not end soon.
KILL_AGE = (0.3, RUN_SECONDS - 0.5)
BEAT_START_SECONDS = 10.0
DRAIN_SECONDS = 20.0
LOOK_EVERY = 0.05


def play(a_round: Round, fleet: Fleet, narrator: Narrator) -> Outcome:
    """Returns the outcome when every task is completed, or when the time for that is over."""
    narrator.begin(a_round.title)
    return _Play(a_round, fleet, narrator).to_the_end()


class _Play:
    def __init__(self, a_round: Round, fleet: Fleet, narrator: Narrator) -> None:
        self._round, self._fleet, self._narrator = a_round, fleet, narrator
        self._beats = [fleet.start_beat(name, a_round.task) for name in BEATS]
        self._deadline = time.time() + BEAT_START_SECONDS + TICKS * TICK_SECONDS + DRAIN_SECONDS
        self._kill: Kill | None = None
        self._ticks = 0
        self._said: set[str] = set()

    def to_the_end(self) -> Outcome:
        while True:
            outcome = self._look()
            self._publish_on(outcome)
            self._kill_in_the_middle(outcome)
            self._say(outcome)
            if self._is_over(outcome):
                return outcome
            time.sleep(LOOK_EVERY)

    def _look(self) -> Outcome:
        return outcome_of(self._round, events(self._fleet.client, self._round.task), self._kill)

    def _publish_on(self, outcome: Outcome) -> None:
        """Count the ticks that both beats have published, and stop a beat after its last tick."""
        published = Counter(publication.pid for publication in outcome.publications)
        for beat in self._beats:
            if published[beat.pid] >= TICKS and beat.running:
                beat.stop()
            _refuse_early_end(beat, published[beat.pid])
        for tick in range(self._ticks, min(published[beat.pid] for beat in self._beats)):
            self._narrator.say(f"tick {tick + 1}: both beats publish the task")
            self._ticks = tick + 1

    def _kill_in_the_middle(self, outcome: Outcome) -> None:
        if self._kill is not None or self._ticks < KILL_AFTER_TICK:
            return
        for run in outcome.running:
            if KILL_AGE[0] <= time.time() - run.start <= KILL_AGE[1] and self._killed(run.worker):
                self._fleet.replace_worker(run.worker)
                doing = "while it holds the lock" if self._round.locked else "while it runs the task"
                self._narrator.say(
                    f"[bold magenta]kill -9 of {run.worker}[/] {doing}; a new {run.worker} starts"
                )
                return

    def _killed(self, worker: str) -> bool:
        """Kill the worker, unless the broker would lose a message by that. Returns whether it was killed.

        kombu pops a message from Redis and a moment later notes it as unacknowledged. A worker that dies in
        between loses the message. That is a gap of the broker, not of the lock, so the demo avoids it.
        """
        with self._fleet.broker_paused():
            if not self._fleet.waits_for_messages(worker):
                return False
            self._kill = Kill(worker, time.time())
            self._fleet.kill_worker(worker)
        return True

    def _say(self, outcome: Outcome) -> None:
        running = [run.worker for run in outcome.running]
        self._narrator.status(f"{len(outcome.completed)} of {TICKS * len(BEATS)} tasks completed", running)
        if len(running) > 1:
            self._say_once("overlap", f"[red]{' and '.join(running)} run the task at the same time[/]")
        if outcome.kill is not None:
            self._say_after_kill(outcome, outcome.kill)

    def _say_after_kill(self, outcome: Outcome, kill: Kill) -> None:
        if outcome.successor and self._round.locked:
            self._say_once("lease", f"the dead worker's lease ends: {_start(outcome.successor, kill)}")
        if outcome.rerun:
            self._say_once("rerun", f"the killed task is redelivered: {_start(outcome.rerun, kill)}")

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._narrator.say(text)

    def _is_over(self, outcome: Outcome) -> bool:
        if time.time() > self._deadline:
            self._narrator.say(f"[red]{len(outcome.lost)} tasks are not completed in time[/]")
            return True
        return self._ticks >= TICKS and not outcome.lost and not outcome.running


def _start(run: Run, kill: Kill) -> str:
    return f"{run.worker} starts {run.start - kill.at:.1f} s after the kill"


def _refuse_early_end(beat: Process, published: int) -> None:
    if published < TICKS and not beat.running:
        raise RuntimeError(f"{beat.name} has ended too early. The end of its log:\n{beat.log[-2000:]}")
