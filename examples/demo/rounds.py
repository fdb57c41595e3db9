"""One round: beats publish some ticks, one worker is killed in the middle, and the rest is completed."""

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
# The run to kill: one that has begun for sure, and whose end is still far enough away.
KILL_AGE = (0.3, RUN_SECONDS - 0.5)
BEAT_START_SECONDS = 10.0
DRAIN_SECONDS = 20.0
LOOK_EVERY = 0.05


def play(a_round: Round, fleet: Fleet, narrator: Narrator) -> Outcome:
    """What came of it, when every task is completed or has had time enough."""
    narrator.begin(a_round.title)
    return _Play(a_round, fleet, narrator).to_the_end()


class _Play:
    def __init__(self, a_round: Round, fleet: Fleet, narrator: Narrator) -> None:
        self._round, self._fleet, self._narrator = a_round, fleet, narrator
        self._beats = [fleet.start_beat(name, a_round.task) for name in BEATS]
        self._deadline = time.time() + BEAT_START_SECONDS + TICKS * TICK_SECONDS + DRAIN_SECONDS
        self._kill: Kill | None = None
        self._ticks = 0
        self._told: set[str] = set()

    def to_the_end(self) -> Outcome:
        while True:
            outcome = self._look()
            self._publish_on(outcome)
            self._kill_in_the_middle(outcome)
            self._tell(outcome)
            if self._is_over(outcome):
                return outcome
            time.sleep(LOOK_EVERY)

    def _look(self) -> Outcome:
        return outcome_of(self._round, events(self._fleet.client, self._round.task), self._kill)

    def _publish_on(self, outcome: Outcome) -> None:
        """Count the ticks that both beats have published, and end a beat after its last."""
        published = Counter(publication.pid for publication in outcome.publications)
        for beat in self._beats:
            if published[beat.pid] >= TICKS and beat.running:
                beat.stop()
            _refuse_early_end(beat, published[beat.pid])
        for tick in range(self._ticks, min(published[beat.pid] for beat in self._beats)):
            self._narrator.say(f"tick {tick + 1} published twice")
            self._ticks = tick + 1

    def _kill_in_the_middle(self, outcome: Outcome) -> None:
        if self._kill is not None or self._ticks < KILL_AFTER_TICK:
            return
        for run in outcome.running:
            if KILL_AGE[0] <= time.time() - run.start <= KILL_AGE[1] and self._killed(run.worker):
                self._fleet.replace_worker(run.worker)
                doing = "while holding the lock" if self._round.locked else "while running the task"
                self._narrator.say(f"[bold magenta]{run.worker} killed[/] (kill -9) {doing}, then replaced")
                return

    def _killed(self, worker: str) -> bool:
        """Kill it, unless the broker would lose a message by that.

        What a worker has popped from Redis dies with it until kombu has put it among the unacknowledged
        messages. That gap of the broker is no matter of locks, so the demo kills beside it.
        """
        with self._fleet.broker_standing_still():
            if not self._fleet.waits_for_messages(worker):
                return False
            self._kill = Kill(worker, time.time())
            self._fleet.kill_worker(worker)
        return True

    def _tell(self, outcome: Outcome) -> None:
        running = [run.worker for run in outcome.running]
        self._narrator.status(f"{len(outcome.completed)} of {TICKS * len(BEATS)} tasks completed", running)
        if len(running) > 1:
            self._tell_once("overlap", f"[red]{' and '.join(running)} run it at the same time[/]")
        if outcome.kill is not None:
            self._tell_after_kill(outcome, outcome.kill)

    def _tell_after_kill(self, outcome: Outcome, kill: Kill) -> None:
        if outcome.successor and self._round.locked:
            self._tell_once("lease", f"the dead holder's lease is over: {_start(outcome.successor, kill)}")
        if outcome.rerun:
            self._tell_once("rerun", f"the killed task came back: {_start(outcome.rerun, kill)}")

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._narrator.say(text)

    def _is_over(self, outcome: Outcome) -> bool:
        if time.time() > self._deadline:
            self._narrator.say(f"[red]gave up waiting: lost tasks: {len(outcome.lost)}[/]")
            return True
        return self._ticks >= TICKS and not outcome.lost and not outcome.running


def _start(run: Run, kill: Kill) -> str:
    return f"{run.worker} starts {run.start - kill.at:.1f} s after the kill"


def _refuse_early_end(beat: Process, published: int) -> None:
    if published < TICKS and not beat.running:
        raise RuntimeError(f"{beat.name} has ended; its log ends:\n{beat.log[-2000:]}")
