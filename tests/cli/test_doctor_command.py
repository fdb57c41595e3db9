"""`celery -A proj rlock doctor`, as users run it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from celery_rlock.checks.catalogue import CHECKS, NAMES
from tests.ops.clinic import run_doctor
from tests.support.daemon import ROOT
from tests.support.processes import free_port

PAGE = (ROOT / "docs" / "operations.md").read_text()
#: What takes its time because nobody answers.
SKIPPING = ("--skip", "workers", "--skip", "agreement")
NO_RICH = "import sys; sys.modules['rich'] = None; from celery.__main__ import main; main()"


@pytest.fixture
def conf(server):
    """Nothing wrong but that no worker runs, and that the server forgets."""
    options = {"visibility_timeout": 300}
    return {"broker_url": server.url, "result_backend": server.url, "broker_transport_options": options}


def lines(output):
    """What was said of each check: its mark and the text."""
    return {
        words[1]: words for words in (line.split(None, 2) for line in output.splitlines()) if len(words) > 2
    }


def test_it_shows_a_line_for_each_check_and_ends_well(conf):
    done = run_doctor(conf=conf)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = lines(done.stdout)
    assert set(NAMES) <= shown.keys()
    assert shown["scripts"][0] == "✓"
    assert shown["persistence"][0] == "!"
    assert shown["replicas"][0] == "-"
    assert done.stdout.splitlines()[-1] == "0 errors, 2 warnings"
    assert "\x1b" not in done.stdout


def test_what_is_wrong_says_what_to_do_and_ends_with_1(conf):
    done = run_doctor(*SKIPPING, conf=conf, env={"RLOCK_TEST_BASE": "call"})
    assert done.returncode == 1
    assert lines(done.stdout)["bypass"][0] == "✗"
    assert "to do: call super().__call__() in it" in done.stdout


def test_json_has_the_same_for_programs(conf):
    done = run_doctor("--json", conf=conf, env={"RLOCK_TEST_BASE": "request"})
    report = json.loads(done.stdout)
    assert (report["ok"], report["errors"], report["warnings"]) == (True, 0, 3)
    assert {finding["check"] for finding in report["findings"]} == set(NAMES)
    [bypass] = [finding for finding in report["findings"] if finding["check"] == "bypass"]
    assert bypass["level"] == "warn"
    assert "LockedRequestMixin" in bypass["todo"]


def test_strict_counts_warnings_and_skip_leaves_checks_out(conf):
    assert run_doctor("--strict", *SKIPPING, conf=conf).returncode == 1
    done = run_doctor("--strict", *SKIPPING, "--skip", "persistence", conf=conf)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "all is well"
    assert not {"workers", "persistence"} & lines(done.stdout).keys()


def test_a_wrong_command_line_ends_with_2(conf):
    done = run_doctor("--skip", "nonsense", conf=conf)
    assert done.returncode == 2
    assert "persistence" in done.stderr


def test_a_redis_that_is_down_ends_with_3(conf):
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    done = run_doctor(*SKIPPING, conf={**conf, "rlock_url": url})
    assert done.returncode == 3
    assert lines(done.stdout)["connection"][0] == "✗"
    assert "secret" not in done.stdout + done.stderr


def test_settings_that_no_task_can_be_defined_with_are_told(conf):
    """A worker would not even start so."""
    done = run_doctor(*SKIPPING, conf={**conf, "rlock_tll": 5})
    assert done.returncode == 1
    shown = lines(done.stdout)
    assert shown["settings"][0] == shown["tasks"][0] == "✗"
    assert "'rlock_ttl'" in shown["settings"][2]


def test_a_terminal_without_utf8_is_served(conf):
    done = run_doctor(*SKIPPING, conf=conf, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)["scripts"][0] == "ok"


def on_terminal(*command, conf):
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100"}
    env["RLOCK_TEST_CONF"] = json.dumps(conf)
    arguments = ["-A", "tests.ops.patient", "rlock", "doctor", *SKIPPING]
    with subprocess.Popen(
        [sys.executable, *command, *arguments], stdout=theirs, stderr=theirs, env=env, cwd=ROOT
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not piece:
                break
            written += piece
        process.wait(timeout=60)
    os.close(ours)
    return written.decode()


def test_a_terminal_has_colours_and_wrapped_text(conf):
    written = on_terminal("-m", "celery", conf=conf)
    assert "\x1b[32m✓" in written
    plain = re.sub(r"\x1b\[[\d;]*m", "", written)
    assert max(len(line) for line in plain.splitlines()) <= 100
    assert set(NAMES) - {"workers", "agreement"} <= lines(plain).keys()


def test_a_terminal_without_rich_is_served(conf):
    written = on_terminal("-c", NO_RICH, conf=conf)
    assert "\x1b" not in written
    assert lines(written)["scripts"][0] == "✓"


def documented():
    """Name and whom it asks, of each row of the page's table of checks."""
    section = PAGE.partition("## What the doctor checks")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)


def test_the_example_has_a_line_of_every_check():
    example = PAGE.partition("$ celery -A proj rlock doctor\n")[2].partition("\n\n")[0]
    shown = lines(example)
    assert [name for name in shown if name in NAMES] == list(NAMES)
    for check in CHECKS:
        mark, _, text = shown[check.name]
        assert mark != "✓" or check.fine in {"fine", text} or check.name == "acks"


def test_every_check_is_documented_in_its_place():
    assert documented() == [(check.name, check.asks) for check in CHECKS]
