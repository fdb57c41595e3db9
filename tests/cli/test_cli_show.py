"""`celery rlock show`: one lock, and what can be said without its worker."""

from __future__ import annotations

import re

import pytest

from celery_rlock.core.replies import Heir
from tests.ops.operated_proj import make_app
from tests.ops.operating import Locks, documents, run
from tests.support.daemon import ROOT


@pytest.fixture
def app(server):
    return make_app(server.url)


@pytest.fixture
def locks(server):
    return Locks(server.url)


def show(app, key, *args):
    return run(app, "show", key, "--timeout", "0", *args)


def test_holder_waiters_and_log_texts_are_shown(app, locks):
    owner = locks.hold("account:7")
    locks.wait("account:7", "id-2", "id-3")
    result = show(app, "account:7")
    assert result.exit_code == 0
    for text in ("worker-1@pod", "proj.charge", str(owner), "1. id-2", "2. id-3", "lock 'account:7'"):
        assert text in result.stdout


def test_json_is_one_document(app, locks):
    locks.hold("account:7")
    locks.wait("account:7", *(f"id-{number}" for number in range(30)))
    (shown,) = documents(show(app, "account:7", "--json", "--limit", "3"))
    assert (shown["state"], shown["waiters"], len(shown["in_line"])) == ("held", 30, 3)
    assert shown["workers"] == {"asked": False, "error": None, "answered": []}


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("a\x1b[31m{b}", "a\\x1b[31m{b}"),
        ("a{b}%", "rlock:{a%7Bb%7D%25}"),
        ("x" * 300, None),
        ("é" * 300 + "\n", None),
        ("plain\\x41", "plain\\x41"),
    ],
)
def test_a_key_is_found_by_what_ls_shows(app, locks, key, written):
    locks.hold(key)
    shown = run(app, "ls").stdout.splitlines()[1].split("\t")[0]
    for text in filter(None, (key, written, shown)):
        (document,) = documents(show(app, text, "--json"))
        assert document["task_id"] == "id-1"


def test_a_key_that_is_not_there_says_so(app, locks):
    locks.hold("account:7")
    result = show(app, "account:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nobody holds 'account:9'" in result.stderr
    assert documents(show(app, "account:9", "--json")) == [
        {"key": "account:9", "state": "free", "waiters": 0}
    ]


def test_a_free_lock_with_waiters_tells_of_them(app, locks):
    locks.wait("account:7", "id-2")
    assert "1 waited for it a moment ago" in show(app, "account:7").stderr


def test_another_type_at_its_place_is_told(app, client):
    client.set("rlock:{account:7}", "x")
    result = show(app, "account:7")
    assert result.exit_code == 1
    assert "rlock:{account:7} is not a lock" in result.stderr


def test_an_empty_key_is_a_mistake_of_use(app):
    assert show(app, "").exit_code == 2


def test_a_queued_lock_says_who_published_it(app, locks):
    locks.hold("name", worker="12@host/nonce", delivery="queued", task="proj.unique")
    assert "proj.unique[id-1], published by 12@host" in show(app, "name").stdout


def test_a_resting_lock_says_that_its_run_has_ended(app, locks):
    owner = locks.hold("name")
    locks.scripts.release(locks.scripts.name("name"), owner, 0, heir=Heir("rest", 20))
    assert "has ended; lock_hold_at_least keeps the key" in show(app, "name").stdout


def test_a_script_is_no_worker(app, locks):
    locks.hold("name", worker="12@host", task_id="thread-1", task="")
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 0
    assert "a process that is no worker holds it, 12@host" in result.stdout


def test_a_silent_worker_is_a_problem(app, locks):
    """The broker answers, the worker does not."""
    locks.hold("name", worker="gone@pod")
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "that worker does not answer" in result.stdout


def test_a_broker_that_is_down_does_not_hide_the_lock(server, locks):
    locks.hold("name")
    app = make_app("redis://127.0.0.1:1/0", rlock_url=server.url)
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "the broker does not answer" in result.stdout
    assert "worker-1@pod" in result.stdout


def test_a_broker_that_cannot_ask_workers_does_not_hide_the_lock(app, locks, monkeypatch):
    """As SQS, which has no fanout."""

    def no_fanout(*_, **__):
        raise NotImplementedError("fanout")

    monkeypatch.setattr(type(app.control), "broadcast", no_fanout)
    locks.hold("name")
    result = run(app, "show", "name")
    assert result.exit_code == 1
    assert "NotImplementedError: fanout" in result.stdout
    refused = run(app, "release", "--dead", "--yes")
    assert refused.exit_code == 3
    assert "the broker cannot be asked" in refused.stderr
    assert locks.holder("name")


def test_a_user_who_may_only_read_sees_everything_and_releases_nothing(server, client, locks):
    """The rights that docs/cli.md names are enough."""
    page = (ROOT / "docs" / "cli.md").read_text()
    rights = re.search(r"ACL SETUSER oncall on >secret (.*)", page)[1].split()
    client.execute_command("ACL", "SETUSER", "oncall", "reset", "on", ">secret", *rights)
    try:
        locks.hold("account:7")
        locks.wait("account:7", "id-2")
        url = server.url.replace("redis://", "redis://oncall:secret@")
        app = make_app(server.url, rlock_url=url)
        assert run(app, "ls").exit_code == 0
        assert show(app, "account:7").exit_code == 0
        assert show(app, "account:9").exit_code == 1
        assert run(app, "explain", "charge", "7", "--timeout", "0").exit_code == 1
        refused = run(app, "release", "account:7", "--yes")
        assert refused.exit_code == 3
        assert "NoPermissionError" in refused.stderr
        assert locks.holder("account:7")
    finally:
        client.execute_command("ACL", "DELUSER", "oncall")
