"""`celery rlock ls`, and what it says elsewhere than on a terminal."""

from __future__ import annotations

import io
import subprocess
import time

import pytest
from rich.console import Console

from celery_rlock.core.inventory import Inventory
from celery_rlock.ops import ls
from celery_rlock.ops.output import Output
from celery_rlock.ops.rows import COLUMNS
from tests.ops.operated_proj import make_app
from tests.ops.operating import WITHIN, Locks, command, documents, environment, run
from tests.support.daemon import ROOT


@pytest.fixture
def app(server):
    return make_app(server.url)


@pytest.fixture
def locks(server):
    locks = Locks(server.url)
    locks.hold("account:7")
    locks.hold("account:8", worker="worker-2@pod", task_id="id-8", delivery="d8")
    locks.hold("report", worker="worker-2@pod", task="proj.report", delivery="d9", ttl=5)
    locks.wait("account:8", "id-2", "id-3")
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
def test_filters_choose(app, locks, filters, found):
    result = run(app, "ls", "--json", *filters)
    assert keys(result) == found
    assert result.exit_code == (0 if found else 1)


def test_older_than_knows_how_long_a_lock_is_held(app, locks, client):
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
def test_sort_orders(app, locks, order, first):
    assert documents(run(app, "ls", "--json", "--sort", order))[0]["key"] == first


def test_a_pipe_gets_a_header_and_cells_between_tabs(app, locks):
    header, *rows = [line.split("\t") for line in run(app, "ls", "--sort", "key").stdout.splitlines()]
    assert header == [column.title for column in COLUMNS]
    assert [row[0] for row in rows] == ["account:7", "account:8", "report"]
    assert rows[1][3:5] == ["worker-2@pod", "id-8"]
    assert rows[1][-1] == "2"


def test_nothing_held_says_so_on_stderr(app):
    result = run(app, "ls")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "no lock is held" in result.stderr


def test_what_is_no_lock_is_told(app, locks, client):
    client.hset("rlock:{mine}", mapping={"a": 1})
    assert "rlock:{mine}" in run(app, "ls").stderr


def test_a_hostile_key_is_one_row_of_harmless_text(app, server):
    Locks(server.url).hold("a\n\x1b[31mb\tc\u202e[red]d[/]", worker="w\x1b]0;x\x07", task="t\r")
    lines = run(app, "ls").stdout.splitlines()
    assert len(lines) == 2
    assert all(cell.isprintable() for cell in lines[1].split("\t"))
    assert lines[1].startswith("a\\n\\x1b[31mb\\tc\\u202e[red]d[/]\t")


def test_every_state_has_its_word(app, locks):
    locks.hold("queued", worker="12@host/nonce", delivery="queued", task_id="id-5")
    row = run(app, "ls", "queued").stdout.splitlines()[1].split("\t")
    assert row[:4] == ["queued", "queued", "proj.charge", "12@host"]


def test_rows_are_written_while_the_search_goes_on(server, client):
    """By the real command: the first row is there before the last key was looked at."""
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


def test_a_long_search_shows_how_far_it_is(app, locks, monkeypatch):
    """And leaves nothing of that behind."""
    seen = io.StringIO()
    monkeypatch.setattr(ls, "_PATIENCE", -1.0)
    output = Output()
    output.console = Console(file=seen, force_terminal=True, width=80, legacy_windows=False)
    inventory = Inventory(locks.scripts.client, "rlock:")
    found = list(ls._with_progress(output, inventory, inventory.locks()))
    assert sum(map(len, found)) == 3
    assert "looking for locks" in seen.getvalue()
    assert seen.getvalue().endswith("\x1b[2K")


def test_a_reader_that_has_enough_ends_it_quietly(server, locks):
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
