"""A memory limit on a pod that the kernel enforces: by cgroup v2, or by the memory controller of v1."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil
from typing_extensions import Self

PREFIX = "rlock-fleet"
V2 = Path("/sys/fs/cgroup")
V1 = V2 / "memory"


def _home() -> tuple[Path, str] | None:
    """The folder of the memory controller and its limit file's name; None where there is no controller."""
    controllers = V2 / "cgroup.controllers"
    if controllers.exists() and "memory" in (V2 / "cgroup.subtree_control").read_text().split():
        return V2, "memory.max"
    if (V1 / "memory.limit_in_bytes").exists():
        return V1, "memory.limit_in_bytes"
    return None


class MemoryLimit:
    """A command behind the words `within` may use `limit` bytes; above that the kernel kills a process."""

    def __init__(self, limit: int) -> None:
        home = _home()
        if home is None:
            raise OSError("no memory controller")
        folder, name = home
        _remove_leftovers(folder)
        self.name = f"{PREFIX}-{os.getpid()}"
        self._group = folder / self.name
        self._group.mkdir(exist_ok=True)
        (self._group / name).write_text(str(limit))
        self.within = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._group / "cgroup.procs"))

    @staticmethod
    def available() -> bool:
        """Whether this process may set a limit."""
        try:
            with MemoryLimit(1 << 30):
                return True
        except OSError:
            return False

    def kills(self) -> int:
        """How many processes the kernel has killed because of this limit."""
        for name in ("memory.events", "memory.oom_control"):
            if (self._group / name).exists():
                fields = dict(line.split() for line in (self._group / name).read_text().splitlines())
                return int(fields.get("oom_kill", 0))
        return 0

    def remove(self) -> None:
        _remove(self._group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def names() -> list[str]:
    """The names of all limits that test processes have set."""
    folder, _ = _home() or (V2, "")
    return [group.name for group in folder.glob(f"{PREFIX}-*")]


def _remove(group: Path) -> None:
    for _ in range(50):  # a dead process leaves its group a moment later
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def _remove_leftovers(folder: Path) -> None:
    for group in folder.glob(f"{PREFIX}-*"):
        pid = int(group.name.rpartition("-")[2])
        if pid != os.getpid() and not psutil.pid_exists(pid):
            _remove(group)
