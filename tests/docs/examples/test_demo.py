"""`python -m examples.demo`, as a newcomer runs it."""

from __future__ import annotations

import signal
from xml.etree import ElementTree as ET

import pytest

from tests.support.example import Example


@pytest.fixture
def demo(tmp_path):
    demo = Example("examples.demo", tmp_path)
    yield demo
    demo.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_shows_overlaps_without_the_lock_and_none_with_it(demo):
    assert demo.process.wait(170) == 0, demo.output()
    output = demo.output()
    published, runs, overlaps, lost = demo.figures("without the lock")
    assert published >= 8
    assert runs > published  # the killed one ran again
    assert overlaps > 0
    assert lost == 0
    published, runs, overlaps, lost = demo.figures("with LockedTask")
    assert published >= 8
    assert runs > published
    assert (overlaps, lost) == (0, 0)
    assert "while it holds the lock" in output
    assert "after the lock's holder was killed" in output
    assert max(map(len, output.splitlines())) <= 80
    assert ET.parse(demo.directory / "demo-timeline.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    demo.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("sig", "exit_code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_demo_leaves_nothing_behind_when_it_is_ended_early(demo, sig, exit_code):
    demo.wait_until("tick 1: both beats publish the task")
    assert len(demo.family()) > 6
    demo.process.send_signal(sig)
    assert demo.process.wait(20) == exit_code
    demo.assert_nothing_is_left()
    assert not (demo.directory / "demo-timeline.svg").exists()
