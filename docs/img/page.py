"""Makes page.png: the exporter's page, with real workers, in Chromium.

`python -m docs.img.page`, in the root of the repository, takes 15 minutes, so that the charts have something
to show; MINUTES=1 makes it shorter. It needs the packages of the group `test` and Debian's `chromium` and
`chromium-driver`. A folder as an argument gets the page in other sizes and in dark mode, too.
"""

# ruff: noqa: INP001 - docs is a folder of pages, not a package

from __future__ import annotations

import os
import sys
import time
from base64 import b64decode
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from celery import Celery

from celery_rlock import LockedTask, RLock
from examples.embedded.celery_processes import REPOSITORY, CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.valkey import Valkey
from tests.support.browser import browser, resize
from tests.support.processes import free_port, wait_until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PICTURE = Path(__file__).with_name("page.png")


app = Celery("shop", broker=os.environ.get("REDIS_URL"), backend=os.environ.get("REDIS_URL"))
app.conf.update(worker_send_task_events=True, worker_prefetch_multiplier=1, rlock_backoff_max=5)


@app.task(base=LockedTask, name="shop.charge", lock_key="account:{account}")
def charge(account: int, seconds: float) -> None:  # noqa: ARG001 - the key has it
    time.sleep(seconds)


@app.task(base=LockedTask, name="shop.nightly_import", lock_key="import", lock_ttl=600)
def nightly_import(seconds: float) -> None:
    time.sleep(seconds)


@app.task(
    base=LockedTask, name="shop.send_report", lock_key="report", lock_busy="skip", lock_hold_at_least=900
)
def send_report() -> None:
    pass


@app.task(base=LockedTask, name="shop.rebuild_index", lock_from="publish")
def rebuild_index(shelf: str) -> None:
    pass


def traffic(seconds: float) -> None:
    """Charges that sometimes wait for each other."""
    chance, end = Random(7), time.monotonic() + seconds  # noqa: S311 - the same traffic each time
    while time.monotonic() < end:
        work = min(4.0, chance.lognormvariate(-1.2, 0.9))
        charge.delay(chance.randrange(100, 104), work)
        time.sleep(chance.uniform(0.2, 0.9))


def last_scene() -> None:
    """What the picture shows: one long line, a lock that was lost, and locks in each state."""
    nightly_import.delay(600)
    charge.delay(99, 20)
    wait_until(lambda: charge.lock_of(99, 20).release(), timeout=20, what="account 99 to lose its lock")
    charge.delay(7, 600)
    wait_until(lambda: charge.lock_of(7, 600).holders, timeout=20, what="the holder of account 7")
    for _ in range(3):
        charge.delay(7, 0)
        time.sleep(2)
    charge.delay(8, 600)
    rebuild_index.apply_async(("books",), queue="no-worker-takes-this")
    send_report.delay()


def save(driver: Chrome, path: Path) -> None:
    """The whole page, however long it is."""
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(b64decode(shot["data"]))


def main(folder: Path | None) -> None:
    minutes = float(os.environ.get("MINUTES", "14"))
    with Processes(os.environ) as processes:
        url = Valkey(processes).url
        app.conf.update(broker_url=url, result_backend=url)
        port = free_port()
        commands = CeleryProcesses(processes, "docs.img.page", {"REDIS_URL": url})
        exporter = processes.start(
            "exporter",
            (sys.executable, "-m", "celery", "-A", "docs.img.page", "rlock", "exporter", "--port", str(port)),
            {"REDIS_URL": url, "PYTHONPATH": str(REPOSITORY)},
        )
        exporter.wait_until(lambda: "page of locks" in exporter.log)
        commands.start_workers(("worker-1", "worker-2"), "-P", "threads", "-c", "8")
        for _ in range(3):  # the first report is sent, the others find its key resting
            send_report.delay()
            traffic(minutes * 20)
        last_scene()
        with browser() as driver, RLock("deployment"):
            resize(driver, 1180, 980)
            driver.get(f"http://127.0.0.1:{port}/")
            wait_until(lambda: "deployment" in driver.page_source, timeout=30, what="the page")
            wait_until(lambda: "lost" in driver.page_source, timeout=30, what="the events")
            time.sleep(3)
            save(driver, PICTURE)
            for name, width, dark in (
                ("wide-dark", 1180, True),
                ("phone", 390, False),
                ("phone-dark", 390, True),
            ):
                if folder is not None:
                    resize(driver, width, 980, dark=dark)
                    time.sleep(0.5)
                    save(driver, folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
