"""Background threads that survive signals and errors, and retries of Redis operations on one of them."""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from celery_rlock.errors import LockUnavailable
from celery_rlock.log import logger
from celery_rlock.server.clock import now
from celery_rlock.server.forks import in_forked_child

_TRY_FOR = 60.0
_PAUSE_AFTER_ERROR = 0.5
_LOOK_EVERY = 0.02
_TIME_TO_LEAVE = 1.0


class Loop:
    """A thread that calls `tick` again and again, when it is due or after a `poke`.

    `tick` returns the seconds until it is due again. The thread starts with the first `poke`. The next `poke`
    replaces a thread that died or could not start. Callers may be interrupted by a signal at any point: they
    only touch a `SimpleQueue`, whose operations a signal cannot leave half done.
    """

    def __init__(self, name: str, tick: Callable[[], float]) -> None:
        self._name, self._tick = name, tick
        self._planned = math.inf  #: when `tick` is due; math.inf while it runs, and without a thread
        #: Whether `call_by` was used since the last tick, and how many seconds ahead.
        self._is_used, self._lead = False, 0.0
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()

    def poke(self) -> None:
        """Have `tick` called soon."""
        self._pokes().put(None)
        if not self._is_alive():
            self._start()

    def call_by(self, when: float) -> None:
        """Have `tick` called at `when` at the latest. Wakes the thread only if it would sleep for longer."""
        self._is_used, self._lead = True, when - now()
        if when < self._planned:  # always, if the thread has ended
            self.poke()

    def _is_alive(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            text = "cannot start the thread %s, trying again with the next lock: %s"
            logger.warning(text, self._name, error)

    def _pokes(self) -> Any:
        """Made when first used: gevent may have patched `queue` since this module was imported."""
        made = self.__dict__.get("_queue")
        return made if made is not None else self.__dict__.setdefault("_queue", queue.SimpleQueue())

    def _run(self) -> None:
        with self._mutex:
            running = self._thread
            if running is not None and running.is_alive():
                return  # two callers found no thread at the same moment
            self._thread = threading.current_thread()
        try:
            self._tick_for_ever()
        finally:
            self._planned = math.inf

    def _tick_for_ever(self) -> None:
        pokes = self._pokes()
        while True:
            self._planned = math.inf  # so that a `call_by` during the tick wakes the thread again
            is_used, self._is_used = self._is_used, False
            try:
                pause = self._tick()
            except Exception:
                logger.exception("the thread %s failed, and goes on", self._name)
                pause = _PAUSE_AFTER_ERROR
            if pause == math.inf and is_used:
                # Nothing is due, but the next short task will soon want a tick as far ahead as the last one
                # did. A thread that is planned for then need not be woken: that saved 60 µs a task.
                pause = self._lead
            self._planned = now() + pause
            try:
                pokes.get(timeout=None if pause == math.inf else min(max(0.0, pause), threading.TIMEOUT_MAX))
                while True:
                    pokes.get_nowait()
            except queue.Empty:
                pass


@dataclass(eq=False)
class Job:
    """Something to do, at the earliest at `not_before` and when `is_time` returns True."""

    what: str
    do: Callable[[], object]
    is_time: Callable[[], bool] | None
    give_up: float
    not_before: float
    server: Hashable
    first: bool


class _ServerJobs:
    """The jobs for one server that could be done now. After an error all of them pause together."""

    def __init__(self) -> None:
        self._first: deque[Job] = deque()
        self._others: deque[Job] = deque()
        self._paused_until = 0.0
        self._last_done = 0.0

    def __bool__(self) -> bool:
        return bool(self._first or self._others)

    @property
    def due(self) -> float:
        """When the next job may be done; math.inf if there is none."""
        return self._paused_until if self else math.inf

    @property
    def rank(self) -> tuple[bool, float]:
        """The lowest rank is next: a server with a job that goes first, else the one that waited longest."""
        return not self._first, self._last_done

    def add(self, job: Job) -> None:
        (self._first if job.first else self._others).append(job)

    def do_next(self) -> None:
        """Do a job. It leaves the line afterwards, so that `due` counts it meanwhile."""
        line = self._first or self._others
        job = line[0]
        self._last_done = now()
        try:
            job.do()
        except LockUnavailable as error:
            self._paused_until = now() + _PAUSE_AFTER_ERROR
            line.append(job)  # behind the others: perhaps only this job's part of a Cluster is away
            line.popleft()
            self._drop_overdue(error)
            return
        except Exception:
            logger.exception("could not %s", job.what)
        line.popleft()

    def _drop_overdue(self, error: LockUnavailable) -> None:
        """The server does not answer, so do not ask it once more for each job whose time is over."""
        for line in (self._first, self._others):
            for _ in range(len(line)):
                if now() < line[0].give_up:
                    break
                logger.warning("could not %s: %s", line.popleft().what, error.reason)


class Background:
    """Does jobs on one thread. A job whose server does not answer never delays those for other servers.

    Jobs that release a lock go first. A job costs the same, however many others wait: those of one server are
    in line, those for later are in a heap, and those that wait for the same process to end share one look at
    it. Callers may be interrupted by a signal at any point: they only append to a `deque`, in one step.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child does none of its parent's jobs."""
        self._added: deque[Job] = deque()
        # Only the thread touches the rest.
        self._later: list[tuple[float, int, Job]] = []
        self._waiting: dict[Callable[[], bool], list[Job]] = {}
        self._ready: dict[Hashable, _ServerJobs] = {}
        self._next_look = 0.0
        self._numbers = itertools.count()
        self._loop = Loop("rlock-background", self._tick)

    def add(
        self,
        what: str,
        do: Callable[[], object],
        is_time: Callable[[], bool] | None = None,
        *,
        give_up: float | None = None,
        not_before: float = 0.0,
        server: Hashable = None,
        first: bool = False,
    ) -> None:
        """Do it as soon as it is time. After LockUnavailable, retry until `give_up`, or for a minute.

        While one server does not answer, the jobs for it wait together; those for other servers go on. Jobs
        with equal `is_time` wait together too. With `first` the job goes before those without it.
        """
        self._added.append(Job(what, do, is_time, give_up or now() + _TRY_FOR, not_before, server, first))
        self._loop.poke()

    def flush(self) -> None:
        """Before the process ends, give the jobs that could run now up to a second."""
        end = now() + _TIME_TO_LEAVE
        while (self._added or any(jobs.due <= now() for jobs in list(self._ready.values()))) and now() < end:
            self._loop.poke()
            threading.Event().wait(_LOOK_EVERY)

    def _tick(self) -> float:
        while True:
            self._sort()
            moment = now()
            servers = [server for server, jobs in self._ready.items() if jobs.due <= moment]
            if not servers:
                return self._due() - now()
            server = min(servers, key=lambda server: self._ready[server].rank)
            self._ready[server].do_next()
            if not self._ready[server]:
                del self._ready[server]

    def _sort(self) -> None:
        """Put each job where it waits, or into its server's line if its time has come."""
        while self._added:
            try:
                self._place(self._added[0])
            finally:
                self._added.popleft()  # only now, so that `flush` sees it all the time
        while self._later and self._later[0][0] <= now():
            self._place(heapq.heappop(self._later)[-1])
        if self._waiting and now() >= self._next_look:
            for is_time in [is_time for is_time in self._waiting if is_time()]:
                for job in self._waiting.pop(is_time):
                    self._make_ready(job)
            self._next_look = now() + _LOOK_EVERY

    def _place(self, job: Job) -> None:
        if job.not_before > now():
            heapq.heappush(self._later, (job.not_before, next(self._numbers), job))
        elif job.is_time is not None and (job.is_time in self._waiting or not job.is_time()):
            self._waiting.setdefault(job.is_time, []).append(job)
        else:
            self._make_ready(job)

    def _make_ready(self, job: Job) -> None:
        self._ready.setdefault(job.server, _ServerJobs()).add(job)

    def _due(self) -> float:
        times = [jobs.due for jobs in self._ready.values()]
        times += [self._later[0][0]] if self._later else []
        times += [self._next_look] if self._waiting else []
        return min(times, default=math.inf)


background = Background()
in_forked_child(background.reset)
atexit.register(background.flush)
