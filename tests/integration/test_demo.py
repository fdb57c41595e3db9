"""`python -m examples.demo`, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "RLOCK_DEMO_TEST"


class Demo:
    """The demo in a directory of its own. All its processes, and theirs, carry a mark in the environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = directory / "temporary"
        self.temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._output = (directory / "output").open("w+b")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), MARK: self._mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo"],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def output(self) -> str:
        return (self.directory / "output").read_text(encoding="utf-8")

    def family(self) -> list[psutil.Process]:
        """Every living process of this demo, whoever its parent is by now."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            return alive and process.environ().get(MARK) == self._mark
        except (psutil.Error, OSError):
            return False

    def wait_until(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.1)

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while self.family() or list(self.temporary.iterdir()):
            assert time.monotonic() < deadline, (self.family(), list(self.temporary.iterdir()))
            time.sleep(0.1)

    def close(self) -> None:
        self._output.close()
        for process in self.family():
            process.kill()
        self.process.wait()


@pytest.fixture
def demo(tmp_path):
    demo = Demo(tmp_path)
    yield demo
    demo.close()


def figures(output: str, title: str) -> tuple[int, ...]:
    """published, runs, overlaps and lost tasks of a round."""
    line = re.search(rf"^{title} +(\d+) +(\d+) +(\d+) +(\d+)$", output, re.MULTILINE)
    assert line, output
    return tuple(map(int, line.groups()))


@pytest.mark.timeout(180)
def test_demo_shows_overlaps_without_the_lock_and_none_with_it(demo):
    assert demo.process.wait(170) == 0, demo.output()
    output = demo.output()
    published, runs, overlaps, lost = figures(output, "without the lock")
    assert published >= 8
    assert runs > published  # the killed one ran again
    assert overlaps > 0
    assert lost == 0
    published, runs, overlaps, lost = figures(output, "with LockedTask")
    assert published >= 8
    assert runs > published
    assert (overlaps, lost) == (0, 0)
    assert "while holding the lock" in output
    assert "From the kill of the holder to its successor's start" in output
    assert max(map(len, output.splitlines())) <= 80
    assert ET.parse(demo.directory / "demo-timeline.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    demo.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("sig", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_demo_leaves_nothing_behind_when_it_is_ended_early(demo, sig, exit_code):
    demo.wait_until("tick 1 published twice")
    assert len(demo.family()) > 6
    demo.process.send_signal(sig)
    assert demo.process.wait(20) == exit_code
    demo.assert_nothing_is_left()
    assert not (demo.directory / "demo-timeline.svg").exists()
