"""`celery rlock ls`: filters, order, and output in a pipe."""

from __future__ import annotations

import io
import subprocess
import time

import pytest
from rich.console import Console

from celery_rlock.cli import ls
from celery_rlock.cli.rows import COLUMNS
from celery_rlock.doctor.output import Output
from celery_rlock.server.inventory import Inventory
from tests.cli.run_commands import WITHIN, Locks, command, documents, environment, run
from tests.support.daemon import ROOT


@pytest.fixture
def locks(server):
    locks = Locks(server.url)
    locks.hold("account:7")
    locks.hold("account:8", worker="worker-2@pod", task_id="id-8", delivery="d8")
    locks.hold("report", worker="worker-2@pod", task="proj.report", delivery="d9", ttl=5)
    locks.add_waiters("account:8", "id-2", "id-3")
    return locks


def keys(result):
    return {lock["key"] for lock in documents(result)}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], {"account:7", "account:8", "report"}),
        (["account:*"], {"account:7", "account:8"}),
        (["account:?"], {"account:7", "account:8"}),
        (["count"], {"account:7", "account:8"}),
        (["--task", "proj.report"], {"report"}),
        (["--task", "*report"], {"report"}),
        (["--worker", "worker-2"], {"account:8", "report"}),
        (["account:*", "--worker", "worker-2@*"], {"account:8"}),
        (["--older-than", "0"], {"account:7", "account:8", "report"}),
        (["--older-than", "1.5h"], set()),
        (["nothing-like-this"], set()),
    ],
)
def test_filters_select_locks(app, locks, filters, found):
    result = run(app, "ls", "--json", *filters)
    assert keys(result) == found
    assert result.exit_code == (0 if found else 1)


def test_older_than_selects_by_the_time_held(app, locks, client):
    client.hset("rlock:{account:7}", "@since", int(time.time()) - 600)
    assert keys(run(app, "ls", "--json", "--older-than", "9m")) == {"account:7"}


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("waiters", "account:8"),
        ("key", "account:7"),
        ("lease", "report"),
        ("task", "account:7"),
        ("token", "account:7"),
    ],
)
def test_sort_orders_the_rows(app, locks, order, first):
    assert documents(run(app, "ls", "--json", "--sort", order))[0]["key"] == first


def test_a_pipe_receives_a_header_and_tabs_between_cells(app, locks):
    header, *rows = [line.split("\t") for line in run(app, "ls", "--sort", "key").stdout.splitlines()]
    assert header == [column.title for column in COLUMNS]
    assert [row[0] for row in rows] == ["account:7", "account:8", "report"]
    assert rows[1][3:5] == ["worker-2@pod", "id-8"]
    assert rows[1][-2:] == ["2", "-"]


def test_without_locks_a_message_goes_to_stderr(app):
    result = run(app, "ls")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "no lock is held" in result.stderr


def test_a_key_that_is_not_a_lock_is_reported(app, locks, client):
    client.hset("rlock:{mine}", mapping={"a": 1})
    assert "rlock:{mine}" in run(app, "ls").stderr


def test_control_characters_in_a_key_are_escaped_in_one_row(app, server):
    Locks(server.url).hold("a\n\x1b[31mb\tc\u202e[red]d[/]", worker="w\x1b]0;x\x07", task="t\r")
    lines = run(app, "ls").stdout.splitlines()
    assert len(lines) == 2
    assert all(cell.isprintable() for cell in lines[1].split("\t"))
    assert lines[1].startswith("a\\n\\x1b[31mb\\tc\\u202e[red]d[/]\t")


def test_a_queued_lock_shows_its_state_and_publisher(app, locks):
    locks.hold("queued", worker="12@host/nonce", delivery="queued", task_id="id-5")
    row = run(app, "ls", "queued").stdout.splitlines()[1].split("\t")
    assert row[:4] == ["queued", "queued", "proj.charge", "12@host"]


def test_rows_are_written_during_the_search(server, client):
    """The real command writes the first row before it has visited the last key."""
    locks = Locks(server.url)
    for first in range(0, 200_000, 10_000):
        client.mset({f"other:{number}": "x" for number in range(first, first + 10_000)})
    for number in range(500):
        locks.hold(f"key:{number}", delivery=f"d{number}")
    client.config_resetstat()
    with subprocess.Popen(
        command("ls"), env=environment(server.url), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        assert process.stdout.readline().startswith("key:")
        scans = client.info("commandstats")["cmdstat_scan"]["calls"]
        assert len(process.stdout.readlines()) == 499
        process.wait(WITHIN)
    assert client.info("commandstats")["cmdstat_scan"]["calls"] > scans


def test_a_long_search_shows_a_progress_bar(app, locks, monkeypatch):
    """The bar disappears at the end."""
    seen = io.StringIO()
    monkeypatch.setattr(ls, "_QUICK", -1.0)
    output = Output()
    output.console = Console(file=seen, force_terminal=True, width=80, legacy_windows=False)
    inventory = Inventory(locks.lock_server.client, "rlock:")
    found = list(ls._with_progress(output, inventory, inventory.locks()))
    assert sum(map(len, found)) == 3
    assert "searching for locks" in seen.getvalue()
    assert seen.getvalue().endswith("\x1b[2K")


def test_a_closed_pipe_ends_the_command_quietly(server, locks):
    for number in range(300):
        locks.hold(f"key:{number}", delivery=f"d{number}")
    shell = " ".join(command("ls")) + " | head -1"
    done = subprocess.run(
        shell,
        shell=True,
        env=environment(server.url),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=True,
    )
    assert done.stdout.startswith("KEY")
    assert "Traceback" not in done.stderr
