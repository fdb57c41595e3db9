"""The README and the quickstart show what `celery rlock explain` really prints.

The fixture does what the quickstart says: three long calls, a look at the lock, `kill -9`, and another look.
"""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.conftest import DEFAULT_KIND
from tests.docs.folder import Folder
from tests.docs.pages import page
from tests.support.processes import wait_until

README, QUICKSTART = page("README.md"), page("docs/quickstart.md")
EXPLAIN = "celery -A tasks rlock explain tasks.charge 7 100"
WOULD_WAIT = 1  # the exit code of `explain`
CALLS = "from tasks import charge; [charge.delay(7, n, seconds=60) for n in (100, 50, 25)]"
VARIES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\S+/[0-9a-f]+:ID", "OWNER"),
    (r"(?<=\] on )\S+", "NODE"),
    (r"(?<=has held it for )[\d.]+s", "TIME"),
    (r"^\[[\d-]+ [\d:,]+: ", "["),
)


@pytest.fixture(scope="module")
def seen(servers, tmp_path_factory):
    """What `explain` prints before the kill and after it, and the worker's log."""
    server = servers(DEFAULT_KIND)
    server.client().flushall()
    folder = Folder(QUICKSTART, tmp_path_factory.mktemp("quickstart"), server.url)

    def explain_with(waiters):
        explained = [""]

        def enough():
            explained[0] = celery(folder, EXPLAIN, expected=WOULD_WAIT)
            return f" {waiters} behind it" in explained[0]

        wait_until(enough, timeout=60, what=f"{waiters} behind the holder")
        return explained[0]

    with folder.workers() as [worker]:
        folder.python("-c", CALLS)
        before = explain_with("2 waiters")
        lock = json.loads(celery(folder, "celery -A tasks rlock show account:7 --json"))
        os.kill(lock["run"]["pid"], signal.SIGKILL)
        after = explain_with("1 waiter")
        yield {"before": before, "after": after, "log": worker.log}


def celery(folder, command, **options):
    return folder.python("-m", *command.split(), **options)


def constant(text):
    """The text, with what differs from run to run replaced."""
    for pattern, replacement in VARIES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.strip()


def shown(page):
    """The outputs of EXPLAIN on the page, in their order."""
    parts = [block.code.partition(f"$ {EXPLAIN}\n") for block in page.blocks("console")]
    return [constant(output) for _, command, output in parts if command]


def test_the_readme_shows_what_explain_prints(seen):
    assert shown(README) == [constant(seen["before"])]


def test_the_quickstart_shows_what_explain_prints_before_the_kill(seen):
    assert shown(QUICKSTART)[0] == constant(seen["before"])


def test_the_quickstart_shows_the_beginning_of_what_explain_prints_after_the_kill(seen):
    assert constant(seen["after"]).startswith(shown(QUICKSTART)[1])


def test_the_quickstart_shows_the_line_that_the_worker_logs(seen):
    logged = QUICKSTART.blocks("text")[-1].code
    assert constant(logged) in constant(seen["log"])
