"""`celery rlock show`: one lock, without an answer from its worker."""

from __future__ import annotations

import re
import uuid

import pytest

from celery_rlock import LockedTask, settings
from celery_rlock.server.owner import Owner
from celery_rlock.server.replies import Release, Successor
from tests.cli.commands_app import make_app
from tests.cli.run_commands import documents, run
from tests.support.daemon import ROOT


def show(app, key, *args):
    return run(app, "show", key, "--timeout", "0", *args)


def test_it_shows_holder_waiters_and_texts_to_search_for(app, locks):
    owner = locks.hold("account:7")
    locks.add_waiters("account:7", "id-2", "id-3")
    result = show(app, "account:7")
    assert result.exit_code == 0
    for text in ("worker-1@pod", "proj.charge", str(owner), "1. id-2", "2. id-3", "lock 'account:7'"):
        assert text in result.stdout


def test_json_is_one_document(app, locks):
    locks.hold("account:7")
    locks.add_waiters("account:7", *(f"id-{number}" for number in range(30)))
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
def test_a_key_is_found_by_the_form_that_ls_shows(app, locks, key, written):
    locks.hold(key)
    shown = run(app, "ls").stdout.splitlines()[1].split("\t")[0]
    for text in filter(None, (key, written, shown)):
        (document,) = documents(show(app, text, "--json"))
        assert document["task_id"] == "id-1"


def test_a_holder_that_is_replaced_says_by_whom(app, locks):
    owner = locks.hold("x", task="proj.replacing")
    server = settings.redis_server(app)
    keys = server.redis_keys("x")
    since = server.acquire(keys, Owner("w", "9", "newer"), 1, 5, "proj.replacing").since
    assert server.replace(keys, owner, "proj.replacing", "newer", since, 60, comes_again=False).is_told
    assert "because task newer replaces it" in show(app, "x").stdout
    (document,) = documents(show(app, "x", "--json"))
    assert document["replaced_by"] == "newer"


def test_a_free_lock_is_reported_on_stderr(app, locks):
    locks.hold("account:7")
    result = show(app, "account:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the lock 'account:9' is free" in result.stderr
    assert documents(show(app, "account:9", "--json")) == [
        {"key": "account:9", "state": "free", "waiters": 0, "gone": 0, "in_line": []}
    ]


@pytest.mark.parametrize("held", [True, False])
def test_waiters_whose_process_is_gone_are_shown_and_counted(app, locks, held):
    """Also those that are not listed, and also when the lock is free."""
    if held:
        locks.hold("account:7")
    locks.add_waiters("account:7", "id-2", "id-3", "id-4", listener="gone")
    with locks.lock_server.client.pubsub() as alive:
        alive.subscribe("rlock:wake:alive")
        alive.get_message(timeout=5)
        locks.add_waiters("account:7", "id-5", listener="alive")
        shown = show(app, "account:7", "--limit", "3")
        (document,) = documents(show(app, "account:7", "--json"))
    assert shown.exit_code == (0 if held else 1)
    assert "waiters (4, 3 of them gone)" in shown.stdout
    assert re.search(r"id-2 .* gone: its process has ended \(listener gone\)", shown.stdout)
    assert held or "the lock 'account:7' is free; waiters: 4, 3 of them gone" in shown.stderr
    assert (document["waiters"], document["gone"]) == (4, 3)
    alive = {waiter["task_id"]: waiter["alive"] for waiter in document["in_line"]}
    assert alive == {"id-2": False, "id-3": False, "id-4": False, "id-5": True}


def test_a_free_key_that_looks_like_a_task_id_names_the_command_for_it(app):
    task_id = str(uuid.uuid4())
    assert f"celery rlock explain {task_id}" in show(app, task_id).stderr
    assert "explain" not in show(app, "account:7").stderr


def test_a_redis_key_of_another_type_is_reported(app, client):
    client.set("rlock:{account:7}", "x")
    result = show(app, "account:7")
    assert result.exit_code == 1
    assert "rlock:{account:7} is not a lock" in result.stderr


def test_an_empty_key_is_a_usage_error(app):
    assert show(app, "").exit_code == 2


def test_a_queued_lock_shows_its_publisher(app, locks):
    locks.hold("name", worker="12@host/nonce", delivery="queued", task="proj.unique")
    assert "proj.unique[id-1], published by 12@host" in show(app, "name").stdout


def test_a_resting_lock_shows_that_its_run_has_ended(app, locks):
    owner = locks.hold("name")
    locks.lock_server.release(
        locks.lock_server.redis_keys("name"), owner, Release(successor=Successor("rest", 20))
    )
    assert "has ended; lock_hold_at_least keeps the key" in show(app, "name").stdout


def test_a_lock_of_a_script_is_fine(app, locks):
    locks.hold("name", worker="12@host", task_id="thread-1", task="")
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 0
    assert "held by 12@host, a process that is not a worker" in result.stdout


def test_an_eager_run_of_a_unique_task_is_fine(app):
    """Its process is no worker, so that no worker could answer for it."""
    app.conf.update(task_always_eager=True, task_eager_propagates=True)

    @app.task(base=LockedTask, shared=False, name="proj.eager", lock_from="publish", lock_key="eager")
    def eager():
        shown = run(app, "show", "eager", "--timeout", "0.3")
        return shown.exit_code, shown.stdout

    sent = eager.delay()
    exit_code, shown = sent.get()
    assert exit_code == 0
    assert re.search(rf"held by proj\.eager\[{sent.id}\] on \d+@\S+, a process that is not a worker", shown)


def test_a_holder_whose_worker_is_silent_is_a_problem(app, locks):
    locks.hold("name", worker="gone@pod")
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "its worker does not answer" in result.stdout


@pytest.mark.slow  # Celery tries for six seconds to connect
def test_the_lock_is_shown_while_the_broker_is_down(server, locks):
    locks.hold("name")
    app = make_app("redis://127.0.0.1:1/0", rlock_url=server.url)
    result = run(app, "show", "name", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "the broker does not answer" in result.stdout
    assert "worker-1@pod" in result.stdout


def test_the_lock_is_shown_with_a_broker_without_broadcast(app, locks, monkeypatch):
    """SQS, for example, has no fanout."""

    def no_fanout(*_, **__):
        raise NotImplementedError("fanout")

    monkeypatch.setattr(type(app.control), "broadcast", no_fanout)
    locks.hold("name")
    result = run(app, "show", "name")
    assert result.exit_code == 1
    assert "NotImplementedError: fanout" in result.stdout
    refused = run(app, "release", "--dead", "--yes")
    assert refused.exit_code == 3
    assert "cannot use the broker" in refused.stderr
    assert locks.holder("name")


def test_a_read_only_user_sees_everything_and_releases_nothing(server, client, locks):
    """With the rights that docs/security.md names."""
    page = (ROOT / "docs" / "security.md").read_text()
    rights = re.search(r"ACL SETUSER rlock-survey on >PASSWORD([^`]*)```", page)[1].split()
    client.execute_command("ACL", "SETUSER", "oncall", "reset", "on", ">secret", *rights)
    try:
        locks.hold("account:7")
        locks.add_waiters("account:7", "id-2")
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
