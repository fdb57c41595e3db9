"""`celery -A proj rlock doctor`: the command as users run it, and its documentation."""

from __future__ import annotations

import json
import re

import pytest

from celery_rlock.doctor.catalogue import CHECKS, NAMES
from tests.cli.doctor_app import APP, doctor_env, run_doctor
from tests.cli.run_commands import Terminal
from tests.support.daemon import ROOT
from tests.support.processes import free_port

PAGE = (ROOT / "docs" / "operations.md").read_text()
#: These checks are slow here, because they wait for workers and none runs.
SKIPPING = ("--skip", "workers", "--skip", "agreement")


@pytest.fixture
def conf(server):
    """A good set-up, except that no worker runs, and that the server has no appendonly file."""
    options = {"visibility_timeout": 300}
    acks = {"task_acks_late": True, "task_reject_on_worker_lost": True}
    addresses = {"broker_url": server.url, "result_backend": server.url}
    return {**addresses, **acks, "broker_transport_options": options}


def lines(output):
    """The words of each check's line: its mark, its name and the text."""
    return {
        words[1]: words for words in (line.split(None, 2) for line in output.splitlines()) if len(words) > 2
    }


def test_it_shows_a_line_for_each_check_and_ends_with_0(conf):
    done = run_doctor(conf=conf)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = lines(done.stdout)
    assert set(NAMES) <= shown.keys()
    assert shown["scripts"][0] == "✓"
    assert shown["persistence"][0] == "!"
    assert shown["replicas"][0] == "-"
    assert done.stdout.splitlines()[-1] == "0 errors, 3 warnings"
    assert "\x1b" not in done.stdout


def test_an_error_says_what_to_do_and_ends_with_1(conf):
    done = run_doctor(*SKIPPING, conf=conf, env={"RLOCK_TEST_BASE": "publishing"})
    assert done.returncode == 1
    assert lines(done.stdout)["bypass"][0] == "✗"
    assert "to do: call super().apply_async() in it" in done.stdout


def test_json_has_every_finding(conf):
    done = run_doctor("--json", conf=conf, env={"RLOCK_TEST_BASE": "request"})
    report = json.loads(done.stdout)
    assert (report["ok"], report["errors"], report["warnings"]) == (True, 0, 4)
    assert {finding["check"] for finding in report["findings"]} == set(NAMES)
    [bypass] = [finding for finding in report["findings"] if finding["check"] == "bypass"]
    assert bypass["level"] == "warn"
    assert "LockedRequestMixin" in bypass["todo"]


def test_strict_ends_with_1_for_warnings_that_skip_does_not_leave_out(conf):
    assert run_doctor("--strict", *SKIPPING, conf=conf).returncode == 1
    done = run_doctor("--strict", *SKIPPING, "--skip", "persistence", conf=conf)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "all is well"
    assert not {"workers", "persistence"} & lines(done.stdout).keys()


def test_a_wrong_command_line_ends_with_2(conf):
    done = run_doctor("--skip", "nonsense", conf=conf)
    assert done.returncode == 2
    assert "persistence" in done.stderr


def test_a_lock_server_that_is_down_ends_with_3(conf):
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    done = run_doctor(*SKIPPING, conf={**conf, "rlock_url": url})
    assert done.returncode == 3
    assert lines(done.stdout)["connection"][0] == "✗"
    assert "secret" not in done.stdout + done.stderr


def test_an_unknown_setting_is_reported_though_no_task_can_be_loaded(conf):
    done = run_doctor(*SKIPPING, conf={**conf, "rlock_tll": 5})
    assert done.returncode == 1
    shown = lines(done.stdout)
    assert shown["settings"][0] == shown["tasks"][0] == "✗"
    assert "'rlock_ttl'" in shown["settings"][2]


def test_without_utf8_the_marks_are_ascii(conf):
    done = run_doctor(*SKIPPING, conf=conf, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)["scripts"][0] == "ok"


def on_terminal(conf, **env):
    """What the command writes to a terminal of 100 columns."""
    env = doctor_env(conf, **env)
    with Terminal("", "doctor", *SKIPPING, rows=100, env=env, app=APP) as terminal:
        assert terminal.end() == 0
        return terminal.raw.decode()


def test_a_terminal_shows_colours_and_wrapped_text(conf):
    written = on_terminal(conf)
    assert "\x1b[32m✓" in written
    plain = re.sub(r"\x1b\[[\d;]*m", "", written)
    assert max(len(line) for line in plain.splitlines()) <= 100
    assert set(NAMES) - {"workers", "agreement"} <= lines(plain).keys()


def test_without_rich_a_terminal_shows_plain_text(conf, tmp_path):
    (tmp_path / "rich.py").write_text("raise ImportError('not installed')")
    written = on_terminal(conf, PYTHONPATH=str(tmp_path))
    assert "\x1b" not in written
    assert lines(written)["scripts"][0] == "✓"


def documented():
    """The name of each check in the page's table, and what it asks."""
    section = PAGE.partition("## What the doctor checks")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)


def test_the_example_on_the_page_has_a_line_for_every_check():
    example = PAGE.partition("$ celery -A proj rlock doctor\n")[2].partition("\n\n")[0]
    shown = lines(example)
    assert [name for name in shown if name in NAMES] == list(NAMES)
    for check in CHECKS:
        mark, _, text = shown[check.name]
        assert mark != "✓" or check.fine in {"fine", text}


def test_the_page_documents_every_check_in_order():
    assert documented() == [(check.name, check.asks) for check in CHECKS]
