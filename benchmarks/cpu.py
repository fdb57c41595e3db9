"""CPU time of other processes, from the scheduler's own accounts. Linux only.

The accounts have steps of nanoseconds, where psutil and `times` have steps of 10 ms. They count only the time
on a processor, so another program that keeps a process waiting does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def cpu(pids: Iterable[int]) -> float:
    """The CPU seconds that all threads of these processes have used so far."""
    return sum(_nanoseconds(pid) for pid in pids) / 1e9


def _nanoseconds(pid: int) -> int:
    # /proc/PID/schedstat has the main thread only. The first figure is the time on a processor.
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)
