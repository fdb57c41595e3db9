"""An example, run as a newcomer runs it: its process, its output, and the processes that it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

from tests.support.processes import alive, prepare_child, wait_until

ROOT = Path(__file__).resolve().parents[2]
MARK = "RLOCK_EXAMPLE_TEST"
#: Settings of a newcomer's own project, which must not disturb an example.
FOREIGN = {"CELERY_BROKER_URL": "redis://nowhere", "DJANGO_SETTINGS_MODULE": "nowhere"}


class Example:
    """`python -m module` in a directory of its own. All its processes, and theirs, carry a mark.

    `root` is where the package `examples` is found.
    """

    def __init__(self, module: str, directory: Path, *args: str, root: Path = ROOT) -> None:
        self.directory = directory
        self.temporary = directory / "temporary"
        self.temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._output = (directory / "output").open("w+b")
        env = {"PYTHONPATH": str(root), "TMPDIR": str(self.temporary), MARK: self._mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=directory,
            env={**os.environ, **FOREIGN, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare_child(),  # noqa: PLW1509 - as in processes.start
        )

    def output(self) -> str:
        return (self.directory / "output").read_text(encoding="utf-8")

    def figures(self, title: str) -> list[float]:
        """The numbers of the line that starts with `title`."""
        line = re.search(rf"^{re.escape(title)}  +(\S.*)$", self.output(), re.MULTILINE)
        assert line, self.output()
        return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line[1])]

    def family(self) -> list[psutil.Process]:
        """Every living process of this example, also one whose parent has died."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return alive(process) and process.environ().get(MARK) == self._mark
        except (psutil.Error, OSError):
            return False

    def wait_until(self, text: str, seconds: float = 60) -> None:
        def printed() -> bool:
            assert self.process.poll() is None or text in self.output(), self.output()
            return text in self.output()

        wait_until(printed, timeout=seconds, what=f"{text!r} in the output", every=0.1)

    def assert_nothing_is_left(self) -> None:
        wait_until(
            lambda: not self.family() and not list(self.temporary.iterdir()),
            what="the end of all its processes and files",
            every=0.1,
        )

    def close(self) -> None:
        self._output.close()
        for process in self.family():
            process.kill()
        self.process.wait()
