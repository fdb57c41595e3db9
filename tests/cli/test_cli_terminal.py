"""The real commands on a terminal, with everything that a user can do wrong there."""

from __future__ import annotations

import pytest

from tests.conftest import DEFAULT_KIND
from tests.ops.operated_proj import make_app
from tests.ops.operating import Locks, Terminal, piped, run
from tests.support.processes import free_port, wait_until
from tests.support.servers import Server

HOSTILE = "[red]x[/]\x1b[2J\x1b]0;owned\x07\n{y}\u202e"
HOSTILE_SHOWN = "[red]x[/]\\x1b[2J\\x1b]0;owned\\x07\\n{y}\\u202e"


@pytest.fixture
def locks(server):
    return Locks(server.url)


def unfit(raw):
    """Escape sequences that only the hostile key can have brought."""
    return [text for text in (b"\x1b[2J", b"\x1b]0;", b"\x07", "\u202e".encode()) if text in raw]


def test_a_wide_terminal_has_a_table(server, locks):
    locks.hold("account:7")
    locks.hold(HOSTILE, delivery="d2")
    with Terminal(server.url, "ls", columns=200) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0].split()[:3] == ["KEY", "STATE", "TASK"]
        assert any(line.startswith("account:7 ") for line in terminal.lines)
        assert HOSTILE_SHOWN in terminal.text
        assert not unfit(terminal.raw)
        assert b"\x1b[1m" in terminal.raw  # it has its own colours


def test_forty_columns_lose_nothing(server, locks):
    key = "a-rather-long-key:" + "0123456789" * 5
    locks.hold(key, worker="worker-1@a-pod-with-a-long-name-5d9f7c", task="proj.tasks.a_long_task_name")
    with Terminal(server.url, "ls", columns=40) as terminal:
        assert terminal.end() == 0
        for text in (key, "worker-1@a-pod-with-a-long-name-5d9f7c", "proj.tasks.a_long_task_name", "id-1"):
            assert text in terminal.joined
    with Terminal(server.url, "show", key, "--timeout", "0", columns=40, rows=60) as terminal:
        assert terminal.end() == 0
        assert terminal.joined.count(key) >= 2


def test_without_rich_a_terminal_gets_plain_text(server, locks, tmp_path):
    locks.hold(HOSTILE)
    (tmp_path / "rich.py").write_text("raise ImportError('not installed')")
    with Terminal(server.url, "ls", env={"PYTHONPATH": str(tmp_path)}) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0].startswith(HOSTILE_SHOWN)
        assert b"\x1b" not in terminal.raw


def test_no_color_is_obeyed(server, locks):
    locks.hold("account:7")
    with Terminal(server.url, "ls", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert b"\x1b[32m" not in terminal.raw


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "not-there"], 1, "nobody holds 'not-there'"),
        (["show", "[red]x[/]\x1b[2J"], 1, "nobody holds '[red]x[/]\\x1b[2J'"),
        (["ls", "matches-nothing-*"], 1, "no lock matches"),
        (["ls", "--sort", "beauty"], 2, "Invalid value for '--sort'"),
        (["nonsense"], 2, "No such command 'nonsense'"),
    ],
)
def test_what_is_not_there_is_told_plainly(server, locks, words, code, said):
    with Terminal(server.url, *words) as terminal:
        assert terminal.end() == code
        assert said.replace(" ", "") in terminal.joined
        assert "Traceback" not in terminal.text
        assert not unfit(terminal.raw)


def test_no_app_is_told(server):
    done = piped("", "ls", app=None, env={"CELERY_APP": ""})
    assert done.returncode == 3
    assert "celery -A proj rlock" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_down_is_told_with_what_to_do():
    done = piped(f"redis://user:secret@127.0.0.1:{free_port()}/0", "ls")
    assert done.returncode == 3
    assert "check that the server runs, and rlock_url" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [["show", "key"], ["explain", "charge", "7"], ["release", "key"], ["release", "--dead"], ["watch"]],
)
def test_every_command_ends_with_3_when_the_server_is_down(server, words):
    app = make_app(server.url, rlock_url=f"redis://127.0.0.1:{free_port()}/0")
    result = run(app, *words)
    assert result.exit_code == 3
    assert "the lock server cannot be asked" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_release_asks_on_a_terminal(server, locks):
    locks.hold(HOSTILE)
    with Terminal(server.url, "release", HOSTILE_SHOWN, "--timeout", "0") as terminal:
        terminal.await_text("Release it? [y/N]:")
        assert HOSTILE_SHOWN.replace(" ", "") in terminal.joined
        assert not unfit(terminal.raw)
        terminal.type("y\n")
        assert terminal.end() == 0
    assert locks.holder(HOSTILE) is None


def test_watch_follows_and_q_quits(server, locks):
    locks.hold(HOSTILE, ttl=600)
    with Terminal(server.url, "watch", "--interval", "0.2", columns=60) as terminal:
        terminal.await_text(HOSTILE_SHOWN)
        terminal.await_text("1 held")
        locks.hold("account:7", delivery="d2")
        terminal.await_text("2 held")
        assert not unfit(terminal.raw)
        assert terminal.raw.count(b"\x1b[2J") == 0  # it never clears, so it never flickers
        terminal.type("q")
        assert terminal.end() == 0
        assert b"\x1b[?1049l" in terminal.raw  # the screen of before is back
        assert terminal.is_as_before


def test_watch_ends_cleanly_by_ctrl_c(server, locks):
    locks.hold("account:7")
    with Terminal(server.url, "watch") as terminal:
        terminal.await_text("1 held")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert terminal.is_as_before
        assert b"Traceback" not in terminal.raw


def test_watch_survives_a_server_that_stops():
    with Server.start(DEFAULT_KIND) as server:
        Locks(server.url).hold("account:7", ttl=600)
        with Terminal(server.url, "watch", "--interval", "0.2") as terminal:
            terminal.await_text("1 held")
            server.pause()
            terminal.await_text("no answer since")
            server.resume()
            wait_until(lambda: not terminal.shows("no answer since"), timeout=60, what="it to go on")
            assert terminal.shows("account:7")
            terminal.type("q")
            assert terminal.end() == 0


def test_watch_in_a_pipe_writes_snapshots(server, locks):
    locks.hold(HOSTILE)
    done = piped(server.url, "watch", "--interval", "0.1", "--count", "2")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.startswith("# ") for line in lines] == [True, False, True, False]
    assert lines[1].startswith(HOSTILE_SHOWN + "\t")
