"""The exporter's page in a real browser: what a user sees, and what hostile text cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from urllib.parse import quote

import psutil
import pytest

from celery_rlock.telemetry import events
from tests.cli.run_commands import Locks
from tests.cli.telemetry_fleet import ExporterProcess, fresh_proj
from tests.support import browser as chromium
from tests.support.daemon import ROOT
from tests.support.processes import alive, wait_until

pytestmark = pytest.mark.skipif(not chromium.available(), reason=chromium.MISSING)

TOKEN = "a-token-of-many-letters"
MARK = "window.owned=1;alert(1)"

#: Runs in each page before its own scripts: what the browser had to stop is a mistake of the page, too.
WITNESS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""
HOSTILE = {
    "image": f"<img src=x onerror='{MARK}'>",
    "script": f"</script><script>{MARK}</script>",
    "table": f"</td></tr></table><svg onload='{MARK}'>",
    "quote": f"\" onmouseover='{MARK}' x=\"' `${{{MARK}}}`",
    "template": "{{constructor.constructor('alert(1)')()}} %s __proto__",
    "url": f"javascript:{MARK}",
    "rtl": "safe\u202eexe.yenom\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "escape": "w\x1b[2J\x1b]0;owned\x07\r\n\x00\u2028",
    "long": "x" * 10_000,
    "wide": "\U0001f512" * 2_000,
}


@pytest.fixture(scope="module")
def exporter(private_server):
    exporter = ExporterProcess(private_server.url, "--allow-release")
    exporter._env["CELERY_RLOCK_TOKEN"] = TOKEN
    with exporter.started():
        exporter.await_value(1, "exporter_events_connected")
        yield exporter


@pytest.fixture(scope="module")
def driver():
    with chromium.browser() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WITNESS})
        yield driver


@pytest.fixture
def locks(private_server):
    locks = Locks(private_server.url)
    for key in private_server.client().scan_iter("rlock:*"):
        private_server.client().delete(key)
    return locks


@pytest.fixture
def opened(driver, exporter):
    """Opens the page of an exporter, wide and light, and returns the driver."""

    def opened(exporter=exporter, query=""):
        chromium.resize(driver, 1200, 900)
        driver.get(f"http://127.0.0.1:{exporter.port}/{query}")
        return driver

    return opened


def ask(driver, script):
    return driver.execute_script(f"return {script}")


def keys(driver):
    script = "[...document.querySelectorAll('#locks tbody .name')].map(each => each.textContent)"
    return ask(driver, script)


def await_keys(driver, *wanted):
    wait_until(
        lambda: sorted(keys(driver)) == sorted(wanted), timeout=30, what=f"the locks {wanted}", every=0.1
    )


def visible(driver, text):
    return text in ask(driver, "document.body.innerText")


def await_text(driver, text):
    wait_until(lambda: visible(driver, text), timeout=30, what=f"{text!r} on the page", every=0.1)


def test_it_shows_holders_waiters_in_order_and_what_changes(opened, locks):
    locks.hold("account:7", task_id="the-holder")
    locks.add_waiters("account:7", *(f"waiter-{i}" for i in range(6)))
    driver = opened()
    await_keys(driver, "account:7")
    shown = ask(driver, "[...document.querySelectorAll('.line li .id')].map(each => each.textContent)")
    assert shown == [f"waiter-{i}" for i in range(6)]
    assert visible(driver, "held, 6 waiters")
    assert visible(driver, "the-holder on worker-1@pod")
    assert not visible(driver, "waiter-5")
    driver.find_element("css selector", "#locks summary").click()
    assert visible(driver, "waiter-5")
    wait_until(lambda: "1 held, 6 waiting" in driver.title, what="the title")
    locks.hold("account:8")
    await_keys(driver, "account:7", "account:8")
    assert visible(driver, "waiter-5"), "an update closed what the user had opened"
    locks.lock_server.client.delete("rlock:{account:7}")
    await_keys(driver, "account:8")
    locks.lock_server.client.delete("rlock:{account:8}")
    await_text(driver, "No lock is held.")


def test_an_update_keeps_what_the_user_has_selected(opened, locks):
    locks.hold("selected")
    driver = opened()
    await_keys(driver, "selected")
    ask(driver, "getSelection().selectAllChildren(document.querySelector('#locks .name'))")
    before = ask(driver, "document.querySelector('#live-text').textContent")
    wait_until(
        lambda: ask(driver, "document.querySelector('#live-text').textContent") != before,
        timeout=30,
        what="an update",
        every=0.1,
    )
    assert ask(driver, "getSelection().toString()") == "selected"


def test_a_filter_narrows_the_list_and_survives_a_reload(opened, locks):
    locks.hold("account:7", task_id="id-of-seven")
    locks.hold("import", task="proj.nightly")
    driver = opened()
    await_keys(driver, "account:7", "import")
    box = driver.find_element("id", "filter")
    for wanted, found in (("nightly", "import"), ("id-of-seven", "account:7"), ("ACCOUNT", "account:7")):
        box.clear()
        box.send_keys(wanted)
        await_keys(driver, found)
    driver.refresh()
    await_keys(driver, "account:7")
    assert ask(driver, "document.querySelector('#filter').value") == "ACCOUNT"
    driver.find_element("id", "filter").send_keys("-not-there")
    await_text(driver, "No lock matches.")


def send_event(url, kind, **fields):
    proj = fresh_proj(url, url)
    with proj.app.connection_for_write() as connection:
        proj.app.events.Dispatcher(connection, hostname="w@test").send(kind, **fields)


def test_many_skips_do_not_hide_a_loss(opened, private_server):
    fields = {"uuid": "id", "name": "proj.x", "owner": "o", "key": "flooded"}
    send_event(private_server.url, events.LOST, **fields, reason="its lease ended", held=1, token=1)
    for number in range(9):
        about = {**fields, "uuid": f"skip-{number}"}
        send_event(private_server.url, events.SKIPPED, **about, holder="h", action="skip", waited=0)
    driver = opened(query="?filter=flooded")
    rows = "[...document.querySelectorAll('#lately tbody tr')].map(each => each.innerText)"
    await_text(driver, "Show all 10")
    assert len(ask(driver, rows)) == 6
    assert "its lease ended" in ask(driver, rows)[-1]
    driver.find_element("id", "show-all").click()
    wait_until(lambda: len(ask(driver, rows)) == 10, timeout=30, what="all rows")
    assert not driver.find_element("id", "show-all").is_displayed()


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_stays_text(opened, private_server, locks, kind):
    """As a key, a task, a worker, a task id, a waiter, a filter, and in events."""
    text = HOSTILE[kind]
    locks.hold(f"{kind}{text}", worker=text, task_id=text, task=text)
    locks.hold(f"marker-{kind}")
    locks.lock_server.client.zadd(
        locks.lock_server.redis_keys(f"{kind}{text}").waiters, {f"listener:d:{text}": 1e15}
    )
    driver = opened()
    wait_until(
        lambda: f"marker-{kind}" in keys(driver) and len(keys(driver)) == 2, timeout=30, what="both rows"
    )
    fields = {"uuid": text, "name": text, "key": f"{kind}{text}", "owner": text}
    send_event(private_server.url, events.SKIPPED, **fields, holder=text, action="skip", waited=0)
    send_event(private_server.url, events.LOST, **fields, reason=text, held=1, token=1)
    wait_until(
        lambda: any(
            name.startswith(kind)
            for name in ask(driver, "[...document.querySelectorAll('#lately .name')].map(e => e.textContent)")
        ),
        timeout=30,
        what="the events on the page",
    )
    ask(driver, "[...document.querySelectorAll('#locks button')].forEach(button => button.click())")
    ask(driver, "document.querySelector('dialog').close()")
    assert ask(driver, "window.owned") is None
    assert ask(driver, "window.violations") == []
    assert ask(driver, "document.scripts.length") == 1
    assert ask(driver, "document.images.length") == 1
    everything = ask(driver, "document.body.textContent")
    assert not [char for char in "\x1b\x07\x00\u202e\u2028" if char in everything]
    assert ask(driver, "document.documentElement.scrollWidth <= innerWidth"), "the text widens the page"
    row = ask(
        driver, "Math.max(...[...document.querySelectorAll('tbody tr')].map(each => each.clientHeight))"
    )
    assert row < 900, "one text fills the whole page"
    if kind in {"image", "script", "table", "url"}:
        assert text in everything
    opened(query=f"?filter={quote(text[:100])}")
    wait_until(
        lambda: ask(driver, "document.querySelector('#live-text').textContent") != "loading …", what="data"
    )
    assert ask(driver, "window.owned") is None


def test_a_user_with_the_token_releases_a_lock(opened, locks):
    locks.hold("stuck", task_id="gone")
    driver = opened()
    await_keys(driver, "stuck")
    driver.find_element("css selector", "#locks button").click()
    assert visible(driver, "Release this lock?")
    token = driver.find_element("id", "token")
    token.send_keys("wrong-wrong-wrong")
    driver.find_element("css selector", "dialog .danger").click()
    await_text(driver, "the token is wrong")
    assert locks.holder("stuck")
    token.clear()
    token.send_keys(TOKEN)
    driver.find_element("css selector", "dialog .danger").click()
    await_text(driver, "No lock is held.")
    assert locks.holder("stuck") is None
    assert not ask(driver, "document.querySelector('dialog').open")
    stored = ask(driver, "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert TOKEN not in stored


def test_without_allow_release_there_is_no_button(opened, private_server, locks):
    locks.hold("look-only")
    with ExporterProcess(private_server.url).started() as exporter:
        driver = opened(exporter)
        await_keys(driver, "look-only")
        assert not driver.find_element("css selector", "#locks button").is_displayed()


def test_it_says_when_redis_or_the_exporter_is_away(opened, private_server, locks):
    locks.hold("kept")
    with ExporterProcess(private_server.url).started() as exporter:
        driver = opened(exporter)
        await_keys(driver, "kept")
        private_server.pause()
        try:
            await_text(driver, "Redis does not answer")
            assert keys(driver) == ["kept"]
        finally:
            private_server.resume()
        wait_until(lambda: not visible(driver, "Redis does not answer"), timeout=30, what="Redis to be back")
        exporter.stop(timeout=0)
        await_text(driver, "The exporter does not answer")
        assert keys(driver) == ["kept"]


TEXTS = "h1, #app, #live-text, figcaption *, .axis, .name, .id, .task, .state, .line li, .number, dt, dd, a"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_texts_can_be_read_in_both_modes_and_widths(opened, locks, width, dark):
    locks.hold("account:7")
    locks.hold("queued", delivery="queued")
    locks.hold("resting", delivery="rest")
    locks.add_waiters("account:7", "waiter")
    driver = opened()
    chromium.resize(driver, width, 900, dark=dark)
    await_keys(driver, "account:7", "queued", "resting")
    background = ask(driver, "getComputedStyle(document.body).backgroundColor")
    assert (brightness(background) < 0.2) == dark
    colours = ask(
        driver, f"[...document.querySelectorAll('{TEXTS}')].map(each => getComputedStyle(each).color)"
    )
    assert len(colours) > 20
    assert min(contrast(colour, background) for colour in colours) >= 4.5
    assert ask(driver, "document.documentElement.scrollWidth <= innerWidth")


def brightness(colour):
    """The relative luminance, as WCAG defines it."""
    parts = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    light, dark = sorted((brightness(one), brightness(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_it_needs_nothing_from_elsewhere(opened, exporter, locks):
    """Every request goes to the exporter, and nothing fails."""
    locks.hold("here")
    driver = opened()
    driver.get_log("browser")  # what other tests have left there
    driver.refresh()
    await_keys(driver, "here")
    names = ask(driver, "performance.getEntries().map(each => each.name)")
    asked = [name for name in names if "://" in name]
    assert asked
    assert all(name.startswith(f"http://127.0.0.1:{exporter.port}/") for name in asked)
    severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_a_page_that_no_user_sees_asks_nothing(opened, locks):
    driver = opened()
    await_text(driver, "No lock is held.")
    hidden = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}})"
    driver.execute_script(hidden.format("true"))
    count = "performance.getEntriesByType('resource').filter(each => each.name.includes('locks.json')).length"
    time.sleep(1)
    before = ask(driver, count)
    time.sleep(1.5)
    assert ask(driver, count) <= before + 1  # it may have been under way for longer
    driver.execute_script(hidden.format("false") + "; document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: ask(driver, count) > before + 1, timeout=30, what="the page to ask again")


KILLED = """
import time
from tests.support.browser import browser
with browser() as driver:
    print(driver.service.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def short_path():
    """A temporary directory. The path of a socket of Chromium has 108 characters at most."""
    with tempfile.TemporaryDirectory(prefix="rlock-", ignore_cleanup_errors=True) as path:
        yield path


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_test_process_leaves_no_browser(short_path):
    env = {**os.environ, "TMPDIR": short_path}  # a killed process cannot remove its own directories
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    ) as session:
        try:
            assert int(session.stdout.readline())
            family = psutil.Process(session.pid).children(recursive=True)
            names = {process.name() for process in family}
            assert "chromedriver" in names
            assert names & {"chromium", "chrome"}
        finally:
            session.kill()
    wait_until(lambda: not any(map(alive, family)), timeout=20, what="the end of the browser")
