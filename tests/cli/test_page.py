"""The exporter's page over HTTP: its data, its headers, who may see it, and the release of a lock."""

from __future__ import annotations

import http.client
import json
import math
import subprocess
import sys
import threading
import time
from urllib.parse import quote

import pytest

from celery_rlock.cli import page_data
from celery_rlock.cli.page import HEADERS, is_local
from celery_rlock.cli.page_data import LONGEST_TEXT, MOST_EVENTS, MOST_ROWS, SLOTS, PageData
from celery_rlock.cli.survey import MOST_WAITERS, Survey, survey
from celery_rlock.server import inventory
from celery_rlock.telemetry import events
from tests.cli.run_commands import Locks
from tests.cli.telemetry_fleet import PROJ, ExporterProcess, environment, started
from tests.support.daemon import ROOT
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import DEFAULT_KIND, Server

TOKEN = "a-token-of-many-letters"
FILES = ["/", "/page.css", "/page.js", "/icon.svg"]


@pytest.fixture(scope="module")
def exporter(private_server):
    with ExporterProcess(private_server.url).started() as exporter:
        yield exporter


@pytest.fixture(scope="module")
def releasing(private_server, tmp_path_factory):
    """An exporter that may release locks."""
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(f"{TOKEN}\n")
    options = ("--allow-release", "--token-file", str(file))
    with ExporterProcess(private_server.url, *options).started() as exporter:
        yield exporter


@pytest.fixture
def locks(private_server):
    private_server.client().flushall()
    return Locks(private_server.url)


def ask(exporter, path, method="GET", body=None, **headers):
    """The answer's status, headers and body; a header's name has underscores instead of dashes."""
    connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=20)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, sent)
    answer = connection.getresponse()
    read = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), read


def data_of(exporter, wanted=""):
    status, _, body = ask(exporter, f"/locks.json?filter={quote(wanted)}")
    assert status == 200
    return json.loads(body)


def keys_of(data):
    return [lock["key"] for lock in data["locks"]]


def await_locks(exporter, *keys):
    """The page's data, once the page shows exactly these keys."""

    def seen():
        data = data_of(exporter)
        return data if sorted(keys_of(data)) == sorted(keys) else None

    return wait_until(seen, timeout=30, what=f"the locks {keys}", every=0.1)


def test_the_data_have_holders_and_waiters_in_order(exporter, locks):
    locks.hold("free-soon", task_id="id-2")
    owner = locks.hold("awaited")
    locks.add_waiters("awaited", "first", "second", "third")
    data = await_locks(exporter, "awaited", "free-soon")
    lock = data["locks"][0]
    assert (lock["key"], lock["state"], lock["task"], lock["worker"]) == (
        *("awaited", "held", "proj.charge", owner.worker),
    )
    assert lock["owner"] == str(owner)
    assert [waiter["task_id"] for waiter in lock["in_line"]] == ["first", "second", "third"]
    assert data["survey"]["states"] == {"held": 2}
    assert data["survey"]["waiters"] == 3
    assert data["survey"]["complete"]


def test_a_filter_searches_key_task_worker_and_ids(exporter, locks):
    locks.hold("one", task="proj.charge", task_id="aaa")
    locks.hold("two", task="proj.report", task_id="bbb", worker="Pod-9@host")
    locks.add_waiters("two", "waits-here")
    await_locks(exporter, "one", "two")
    for wanted, found in (
        ("one", ["one"]),
        ("proj.report", ["two"]),
        ("AAA", ["one"]),
        ("pod-9", ["two"]),
        ("waits-here", ["two"]),
        ("nowhere", []),
        ("proj.", ["two", "one"]),
    ):
        assert keys_of(data_of(exporter, wanted)) == found, wanted


def test_long_lines_and_many_locks_are_cut_and_counted(private_server, locks, monkeypatch):
    for i in range(30):
        locks.hold(f"key-{i}")
    locks.add_waiters("key-7", *(f"id-{i}" for i in range(MOST_WAITERS + 5)))
    locks.add_waiters("key-8", "id")
    monkeypatch.setattr(page_data, "MOST_ROWS", 4)
    monkeypatch.setattr(inventory, "BATCH", 5)
    data = PageData()
    data.show(survey(locks.lock_server, str, longest=30, keep=10))
    found = data.as_json()
    assert len(found["locks"]) == 4
    assert keys_of(found)[:2] == ["key-7", "key-8"]
    assert found["locks"][0]["waiters"] == MOST_WAITERS + 5
    assert len(found["locks"][0]["in_line"]) == MOST_WAITERS
    assert found["left_out"] == {"matching": 6, "not_searched": 20}
    assert found["survey"]["states"] == {"held": 30}


def test_the_waiters_of_a_cluster_are_found_on_every_node(cluster):
    locks = Locks(f"redis+cluster://127.0.0.1:{cluster[0].port}")
    for i in range(8):
        locks.hold(f"key-{i}")
        locks.add_waiters(f"key-{i}", f"waits-{i}")
    found = survey(locks.lock_server, str, longest=30, keep=100)
    waiting = {name: [waiter.task_id for waiter in line] for name, line in found.waiting.items()}
    assert waiting == {f"rlock:{{key-{i}}}": [f"waits-{i}"] for i in range(8)}


def test_many_open_pages_cause_no_more_surveys(private_server):
    with Proxy(private_server.port) as proxy, ExporterProcess(proxy.url, "--interval", "60").started() as own:
        wait_until(lambda: data_of(own)["survey"]["at"], timeout=30, what="the first survey")
        began, asked = time.monotonic(), len(proxy.seen)
        for _ in range(150):
            data_of(own)
        surveys = [command for command in proxy.seen[asked:] if command[0].upper() == b"DBSIZE"]
        # One every two seconds, and one that had begun before.
        assert len(surveys) <= (time.monotonic() - began) / 2 + 2
        # An open page does not wait for the interval, either.
        first = data_of(own)["survey"]["at"]
        wait_until(
            lambda: data_of(own)["survey"]["at"] > first, timeout=30, what="the next survey", every=0.2
        )


def test_while_redis_is_away_the_page_says_so_and_keeps_what_it_saw():
    with Server.start(DEFAULT_KIND) as server, ExporterProcess(server.url).started() as exporter:
        Locks(server.url).hold("kept")
        await_locks(exporter, "kept")
        server.kill()
        data = wait_until(
            lambda: next((data for data in [data_of(exporter)] if data["survey"]["error"]), None),
            timeout=30,
            what="an error",
            every=0.1,
        )
        assert "Connection" in data["survey"]["error"]
        assert keys_of(data) == ["kept"]
        server.restart()
        wait_until(lambda: not data_of(exporter)["survey"]["error"], timeout=30, what="an answer", every=0.1)


def test_skips_losses_and_times_of_a_worker_are_shown(private_server, locks, exporter, tmp_path):
    wait_until(lambda: data_of(exporter)["hears"], timeout=30, what="the events")
    with started(private_server.url, "-E", concurrency=2, directory=tmp_path) as fleet:
        with fleet.hold("busy"):
            fleet.proj.skipping.delay("busy").get(timeout=20, propagate=False)
            fleet.proj.failing.delay("busy").get(timeout=20, propagate=False)
        fleet.proj.losing.delay("mine").get(timeout=20)
        fleet.proj.work.delay("mine", 0.2).get(timeout=20)
        data = wait_until(
            lambda: next((data for data in [data_of(exporter)] if data["hold"]["count"] >= 2), None),
            timeout=30,
            what="the times",
            every=0.1,
        )
        happened = {each["what"]: each for each in data["lately"]}
        assert set(happened) == {"skipped", "failed", "lost"}
        assert happened["skipped"]["task"] == fleet.proj.skipping.name
        assert happened["skipped"]["key"] == "busy"
        assert happened["lost"]["about"]
        assert data["counts"] == {"skipped": 1, "failed": 1, "lost": 1}
        assert data["hold"]["longest"] >= 0.2
        assert data["wait"]["count"] >= 2
        assert [each["what"] for each in data_of(exporter, "mine")["lately"]] == ["lost"]


@pytest.mark.parametrize("path", [*FILES, "/locks.json"])
def test_every_answer_has_the_headers_that_confine_a_page(exporter, path):
    status, headers, body = ask(exporter, path)
    assert status == 200
    assert body
    assert {name: headers[name] for name, _ in HEADERS} == dict(HEADERS)
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert ask(exporter, path, "HEAD")[2] == ""
    assert ask(exporter, path, "POST", "x")[0] == 405


def test_the_files_have_no_inline_script_or_style_and_no_foreign_address():
    folder = ROOT / "celery_rlock/cli/static"
    page, script = (folder / "page.html").read_text(), (folder / "page.js").read_text()
    assert page.count("<script") == page.count("<script src=") == 1
    assert not [word for word in ("style=", "<style", "onclick", "onerror", "javascript:") if word in page]
    assert not [
        word
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write")
        if word in script
    ]
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file


def test_another_path_is_not_a_file(exporter):
    for path in ("/page.html", "/../page.py", "/static/page.js", "/page.js/"):
        assert ask(exporter, path)[0] == 404, path
    assert ask(exporter, "/locks.json?" + "&".join(f"{name}=1" for name in "abcdef"))[0] == 400


@pytest.mark.parametrize("path", ["/", "/locks.json", "/release", "/metrics"])
def test_a_foreign_name_that_leads_to_loopback_is_refused(exporter, path):
    """A site could make its own name lead to 127.0.0.1, and read the answers."""
    for host in (
        "evil.example",
        f"evil.example:{exporter.port}",
        "127.0.0.1.evil.example",
        "",
        "[",
        "0.0.0.0",
    ):
        assert ask(exporter, path, Host=host)[0] == 421, host
    assert ask(exporter, "/healthz", Host="evil.example")[0] == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1:9808", "127.1.2.3", "[::1]:9808", "my.name"]
)
def test_names_of_this_host_are_accepted(host):
    assert is_local(host, "my.name")


def test_beyond_loopback_there_is_a_page_only_on_demand(private_server):
    """Metrics have no keys; the page shows all of them."""
    with ExporterProcess(private_server.url, "--host", "0.0.0.0").started() as exporter:
        for path in [*FILES, "/locks.json", "/release"]:
            assert ask(exporter, path)[0] == 404, path
        assert "--page" in ask(exporter, "/")[2]
        assert ask(exporter, "/metrics", Host="any.name")[0] == 200
    with ExporterProcess(private_server.url, "--host", "0.0.0.0", "--page").started() as exporter:
        assert ask(exporter, "/", Host="any.name")[0] == 200
        assert json.loads(ask(exporter, "/locks.json")[2])["may_release"] is False


def release(exporter, seen, token=TOKEN, **headers):
    """What the page's script sends."""
    sent = {"Content_Type": "application/json", **headers}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    status, _, body = ask(exporter, "/release", "POST", json.dumps(seen), **sent)
    return status, json.loads(body)


def seen_in(data):
    [lock] = data["locks"]
    return {name: lock[name] for name in ("redis_key", "owner", "token")}


def test_a_release_frees_what_was_seen_wakes_the_first_waiter_and_is_logged(releasing, locks):
    locks.hold("to-free", task_id="the-task")
    locks.add_waiters("to-free", "first", "second")
    channel = locks.lock_server.client.pubsub()
    channel.subscribe("rlock:wake:listener")
    data = await_locks(releasing, "to-free")
    assert data["may_release"]
    status, answer = release(releasing, seen_in(data))
    assert (status, answer["released"]) == (200, True)
    assert locks.holder("to-free") is None
    told = wait_until(
        lambda: [each for each in [channel.get_message(timeout=1)] if each and each["type"] == "message"],
        what="the waiter to be woken",
    )
    channel.close()
    assert told[0]["data"].decode().startswith("turn ")
    assert told[0]["data"].decode().endswith(":first")
    assert "was released from the page, by 127.0.0.1" in releasing.log
    assert TOKEN not in releasing.log
    await_locks(releasing)
    assert release(releasing, seen_in(data))[0] == 409


def test_a_later_owner_keeps_its_lock(releasing, locks):
    owner = locks.hold("taken-again")
    seen = seen_in(await_locks(releasing, "taken-again"))
    locks.lock_server.client.delete("rlock:{taken-again}")
    locks.hold("taken-again")  # the same owner, under another token
    status, answer = release(releasing, seen)
    assert (status, answer["released"]) == (409, False)
    assert "another owner" in answer["text"]
    assert release(releasing, {**seen, "owner": "another"})[0] == 409
    assert locks.holder("taken-again") == owner.field


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], f"{TOKEN}x", "\xff" * 20])
def test_without_the_token_nothing_is_released(releasing, locks, name, token):
    locks.hold(name)
    status, answer = release(releasing, seen_in(await_locks(releasing, name)), token)
    assert (status, answer["released"]) == (401, False)
    assert locks.holder(name)


@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
    ],
    ids=str,
)
def test_a_page_of_another_site_releases_nothing(releasing, locks, name, header):
    locks.hold(name)
    status, _ = release(releasing, seen_in(await_locks(releasing, name)), **header)
    assert status == 403
    assert locks.holder(name)
    assert ask(releasing, "/release", "OPTIONS", Origin="http://evil.example")[0] == 405
    same = f"http://127.0.0.1:{releasing.port}"
    assert release(releasing, seen_in(await_locks(releasing, name)), Origin=same)[0] == 200


def test_only_locks_can_be_named(releasing, locks):
    locks.lock_server.client.hset("other:{x}", mapping={"d:id": 1, "@token": 1})
    locks.lock_server.client.set("rlock:{text}", "x")
    good = {"redis_key": "rlock:{x}", "owner": "w", "token": 1}
    for body in (
        [],
        None,
        "x",
        {},
        {**good, "token": "1"},
        {**good, "token": True},
        {**good, "redis_key": 5},
    ):
        assert release(releasing, body)[0] == 400, body
    assert release(releasing, {**good, "redis_key": "other:{x}"})[0] == 400
    assert release(releasing, {**good, "redis_key": "rlock:{\ud800}"})[0] == 400
    assert release(releasing, {**good, "redis_key": "rlock:{text}"})[0] == 409
    assert release(releasing, {**good, "owner": "w" * 20_000})[0] == 413
    assert release(releasing, good, Content_Type="text/plain")[0] == 415
    assert locks.lock_server.client.exists("other:{x}", "rlock:{text}") == 2


def test_without_allow_release_no_token_helps(exporter, locks):
    locks.hold("read-only")
    data = await_locks(exporter, "read-only")
    assert data["may_release"] is False
    assert release(exporter, seen_in(data))[0] == 403
    assert ask(exporter, "/release")[0] == 405
    assert locks.holder("read-only")


def test_a_random_token_is_printed_for_this_host_only(private_server, locks):
    locks.hold("by-hand")
    with ExporterProcess(private_server.url, "--allow-release").started() as exporter:
        [token] = [
            line.partition(": ")[2]
            for line in exporter.log.splitlines()
            if line.startswith("token for releases")
        ]
        assert len(token) >= 32
        assert release(exporter, seen_in(await_locks(exporter, "by-hand")), token)[0] == 200


@pytest.mark.parametrize(
    ("options", "variable", "told"),
    [
        (["--token-file", "FILE"], None, "needs --allow-release"),
        (["--allow-release", "--token-file", "FILE"], TOKEN, "remove one of them"),
        (["--allow-release"], "short", "16 or more"),
        (["--allow-release"], "with spaces in it, and long", "16 or more"),
        (["--allow-release"], "", "16 or more"),
        (["--allow-release", "--host", "0.0.0.0"], TOKEN, "needs --page"),
        (
            ["--allow-release", "--host", "0.0.0.0", "--page"],
            None,
            "needs --token-file or CELERY_RLOCK_TOKEN",
        ),
        (["--allow-release", "--token-file", "/gone"], None, "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_token_that_would_not_protect_is_refused(private_server, tmp_path, options, variable, told):
    (tmp_path / "token").write_text(TOKEN)
    words = [str(tmp_path / "token") if word == "FILE" else word for word in options]
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        PROJ,
        "rlock",
        "exporter",
        "--port",
        str(free_port()),
        *words,
    ]
    env = {**environment(private_server.url), "PATH": "/usr/bin:/bin"}
    env |= {} if variable is None else {"CELERY_RLOCK_TOKEN": variable}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT, check=False
    )
    assert ended.returncode == 2
    assert told in " ".join(ended.stderr.split())
    assert TOKEN not in ended.stderr


def test_the_token_may_be_in_the_environment(private_server, locks):
    locks.hold("by-variable")
    exporter = ExporterProcess(private_server.url, "--allow-release")
    exporter._env["CELERY_RLOCK_TOKEN"] = TOKEN
    with exporter.started():
        assert TOKEN not in exporter.log
        assert release(exporter, seen_in(await_locks(exporter, "by-variable")))[0] == 200


def test_a_user_who_may_only_look_releases_nothing(private_server, releasing, locks):
    """The answer names the missing right, and the exporter goes on."""
    locks.hold("kept")
    seen = seen_in(await_locks(releasing, "kept"))
    client = private_server.client()
    client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    try:
        status, answer = release(releasing, seen)
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")
    assert (status, answer["released"]) == (503, False)
    assert "permission" in answer["text"]
    assert release(releasing, seen)[0] == 200


def event(**fields):
    return {"timestamp": time.time(), "name": "proj.x", "uuid": "id", "key": "k", **fields}


def test_an_answer_waits_a_moment_for_a_new_survey_if_the_last_one_is_old(monkeypatch):
    monkeypatch.setattr(page_data, "_STALE", 0)
    data = PageData()
    data.show(Survey())

    def survey_when_wanted():
        data.wanted.wait(20)
        time.sleep(0.1)
        data.show(Survey(is_complete=True))

    surveying = threading.Thread(target=survey_when_wanted)
    surveying.start()
    assert data.as_json()["survey"]["complete"]
    surveying.join()
    assert data.as_json()["survey"]["complete"]  # no survey comes: the last one is shown after a moment


def test_a_flood_of_skips_does_not_hide_a_loss():
    data = PageData()
    handlers = data.handlers()
    handlers[events.LOST](event(reason="lease ended"))
    for _ in range(10 * MOST_EVENTS):
        handlers[events.SKIPPED](event(holder="h"))
    found = data.as_json()
    assert len(found["lately"]) == MOST_EVENTS + 1
    assert found["lately"][-1]["what"] == "lost"
    assert found["counts"] == {"lost": 1, "skipped": 10 * MOST_EVENTS}


def test_the_page_handles_every_type_of_event():
    data = PageData()
    assert set(data.handlers()) == set(events.FIELDS)
    data.handlers()[events.DUPLICATE](event(holder="worker/1:first"))
    [found] = data.as_json()["lately"]
    assert (found["what"], found["about"]) == ("duplicate", "worker/1:first")


def test_charts_have_medians_and_forget():
    data = PageData()
    handlers = data.handlers()
    for waited in (0, 0, 1, 2, 30):
        handlers[events.ACQUIRED](event(waited=waited))
    handlers[events.ACQUIRED](event(waited=99, timestamp=time.time() - 2 * 3600))
    handlers[events.RELEASED](event(held=5, timestamp=time.time() + 3600))
    wait = data.as_json()["wait"]
    assert (wait["count"], wait["median"], wait["longest"]) == (5, 1, 30)
    assert len(wait["slots"]) == SLOTS
    assert data.as_json()["hold"]["count"] == 1


def test_a_slot_keeps_a_sample_that_stands_for_all():
    slot = page_data.Slot()
    for i in range(10_000):
        slot.add(i / 10_000)
    assert (slot.count, slot.longest) == (10_000, 0.9999)
    assert len(slot.samples) == 200
    assert 0.3 < page_data._median(slot.weighted) < 0.7


@pytest.mark.parametrize("bad", ["x", None, math.nan, math.inf, [], {}], ids=str)
def test_malformed_events_are_refused_and_leave_nothing(bad):
    data = PageData()
    handlers = data.handlers()
    for kind, field in (
        (events.ACQUIRED, "waited"),
        (events.SKIPPED, "timestamp"),
        (events.LOST, "timestamp"),
    ):
        with pytest.raises((TypeError, ValueError, KeyError)):
            handlers[kind](event(**{field: bad}))
    handlers[events.SKIPPED](event(key=bad, name=bad, uuid=bad, holder=bad))
    json.dumps(data.as_json(), allow_nan=False)


def test_texts_are_escaped_and_cut():
    data = PageData()
    data.handlers()[events.LOST](event(key="\x1b]0;\u202e" + "x" * 10_000, reason="\n"))
    [lost] = data.as_json()["lately"]
    assert lost["key"].startswith("\\x1b]0;\\u202e")
    assert len(lost["key"]) < LONGEST_TEXT + 20
    assert lost["about"] == "\\n"
    assert MOST_ROWS < page_data.MOST_KEPT
