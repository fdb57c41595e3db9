"""The real commands on a terminal, and the mistakes that a user can make there."""

from __future__ import annotations

import pytest

from tests.cli.commands_app import make_app
from tests.cli.run_commands import Locks, Terminal, piped, run
from tests.support.processes import free_port, wait_until
from tests.support.servers import DEFAULT_KIND, Server

HOSTILE = "[red]x[/]\x1b[2J\x1b]0;owned\x07\n{y}\u202e"
HOSTILE_SHOWN = "[red]x[/]\\x1b[2J\\x1b]0;owned\\x07\\n{y}\\u202e"


def hostile_sequences(raw):
    """The escape sequences of the hostile key that reached the terminal."""
    return [text for text in (b"\x1b[2J", b"\x1b]0;", b"\x07", "\u202e".encode()) if text in raw]


def test_a_wide_terminal_shows_a_table(server, locks):
    locks.hold("account:7")
    locks.hold(HOSTILE, delivery="d2")
    with Terminal(server.url, "ls", columns=200) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0].split()[:3] == ["KEY", "STATE", "TASK"]
        assert any(line.startswith("account:7 ") for line in terminal.lines)
        assert HOSTILE_SHOWN in terminal.text
        assert not hostile_sequences(terminal.raw)
        assert b"\x1b[1m" in terminal.raw  # bold, from our own styles


def test_a_terminal_of_40_columns_shows_every_text_completely(server, locks):
    key = "a-rather-long-key:" + "0123456789" * 5
    locks.hold(key, worker="worker-1@a-pod-with-a-long-name-5d9f7c", task="proj.tasks.a_long_task_name")
    with Terminal(server.url, "ls", columns=40) as terminal:
        assert terminal.end() == 0
        for text in (key, "worker-1@a-pod-with-a-long-name-5d9f7c", "proj.tasks.a_long_task_name", "id-1"):
            assert text in terminal.joined
    with Terminal(server.url, "show", key, "--timeout", "0", columns=40, rows=60) as terminal:
        assert terminal.end() == 0
        assert terminal.joined.count(key) >= 2


def test_without_rich_a_terminal_shows_plain_text(server, locks, tmp_path):
    locks.hold(HOSTILE)
    (tmp_path / "rich.py").write_text("raise ImportError('not installed')")
    with Terminal(server.url, "ls", env={"PYTHONPATH": str(tmp_path)}) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0].startswith(HOSTILE_SHOWN)
        assert b"\x1b" not in terminal.raw


def test_no_color_turns_colours_off(server, locks):
    locks.hold("account:7")
    with Terminal(server.url, "ls", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert b"\x1b[32m" not in terminal.raw


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "not-there"], 1, "the lock 'not-there' is free"),
        (["show", "[red]x[/]\x1b[2J"], 1, "the lock '[red]x[/]\\x1b[2J' is free"),
        (["ls", "matches-nothing-*"], 1, "no lock matches"),
        (["ls", "--sort", "beauty"], 2, "Invalid value for '--sort'"),
        (["nonsense"], 2, "No such command 'nonsense'"),
    ],
)
def test_a_mistake_is_reported_plainly(server, locks, words, code, said):
    with Terminal(server.url, *words) as terminal:
        assert terminal.end() == code
        assert said.replace(" ", "") in terminal.joined
        assert "Traceback" not in terminal.text
        assert not hostile_sequences(terminal.raw)


def test_a_missing_app_is_reported(server):
    done = piped("", "ls", app=None, env={"CELERY_APP": ""})
    assert done.returncode == 3
    assert "celery -A proj rlock" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lock_server_that_is_down_is_reported_with_what_to_do():
    done = piped(f"redis://user:secret@127.0.0.1:{free_port()}/0", "ls")
    assert done.returncode == 3
    assert "check that the server runs, and that rlock_url is right" in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [["show", "key"], ["explain", "charge", "7"], ["release", "key"], ["release", "--dead"], ["watch"]],
)
def test_every_command_ends_with_3_when_the_lock_server_is_down(server, words):
    app = make_app(server.url, rlock_url=f"redis://127.0.0.1:{free_port()}/0")
    result = run(app, *words)
    assert result.exit_code == 3
    assert "cannot use the lock server" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_release_asks_for_confirmation(server, locks):
    locks.hold(HOSTILE)
    with Terminal(server.url, "release", HOSTILE_SHOWN, "--timeout", "0") as terminal:
        terminal.await_text("Release it? [y/N]:")
        assert HOSTILE_SHOWN.replace(" ", "") in terminal.joined
        assert not hostile_sequences(terminal.raw)
        terminal.type("y\n")
        assert terminal.end() == 0
    assert locks.holder(HOSTILE) is None


def test_watch_shows_new_locks_until_q_is_pressed(server, locks):
    locks.hold(HOSTILE, ttl=600)
    with Terminal(server.url, "watch", "--interval", "0.2", columns=60) as terminal:
        terminal.await_text(HOSTILE_SHOWN)
        terminal.await_text("1 held")
        locks.hold("account:7", delivery="d2")
        terminal.await_text("2 held")
        assert not hostile_sequences(terminal.raw)
        assert terminal.raw.count(b"\x1b[2J") == 0  # it never clears the screen, so it does not flicker
        terminal.type("q")
        assert terminal.end() == 0
        assert b"\x1b[?1049l" in terminal.raw  # back to the normal screen
        assert terminal.is_as_before


def test_watch_ends_cleanly_on_ctrl_c(server, locks):
    locks.hold("account:7")
    with Terminal(server.url, "watch") as terminal:
        terminal.await_text("1 held")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert terminal.is_as_before
        assert b"Traceback" not in terminal.raw


def test_watch_goes_on_after_the_server_was_silent():
    with Server.start(DEFAULT_KIND) as server:
        Locks(server.url).hold("account:7", ttl=600)
        with Terminal(server.url, "watch", "--interval", "0.2") as terminal:
            terminal.await_text("1 held")
            server.pause()
            terminal.await_text("no answer since")
            server.resume()
            wait_until(
                lambda: not terminal.shows("no answer since"), timeout=60, what="an answer of the server"
            )
            assert terminal.shows("account:7")
            terminal.type("q")
            assert terminal.end() == 0


def test_watch_writes_snapshots_to_a_pipe(server, locks):
    locks.hold(HOSTILE)
    done = piped(server.url, "watch", "--interval", "0.1", "--count", "2")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.startswith("# ") for line in lines] == [True, False, True, False]
    assert lines[1].startswith(HOSTILE_SHOWN + "\t")
