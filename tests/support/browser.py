"""Chromium, or Chrome, for tests of the exporter's page."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.daemon import Daemon
from tests.support.processes import prepare_child

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "no Chromium on this machine: apt-get install chromium chromium-driver, pip install selenium"

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def available() -> bool:
    return all((CHROMIUM, DRIVER, importlib.util.find_spec("selenium")))


class Chromium(Daemon):
    """A headless Chromium with an empty profile.

    The tests start it themselves, and the driver connects to it. So it is a child of the test process, and
    the kernel ends it with that process. A browser that the driver starts would survive the driver's end.
    """

    ready_within = 60.0

    def __init__(self) -> None:
        super().__init__("chromium")
        self._env["TMPDIR"] = str(self.directory)  # a browser that is killed leaves its files there

    def command(self) -> list[str]:
        profile = f"--user-data-dir={self.directory / 'profile'}"
        return [str(CHROMIUM), *FLAGS, profile, "--remote-debugging-port=0", "about:blank"]

    def is_ready(self) -> bool:
        return self.address is not None

    @property
    def address(self) -> str | None:
        """Where the driver connects to."""
        found = re.search(r"DevTools listening on ws://([^/]+)/", self.log_since_start)
        return found and found[1]


@contextlib.contextmanager
def browser() -> Iterator[Chrome]:
    """A driver of a new Chromium. Both end after the block, and also if the test process is killed."""
    from selenium import webdriver  # noqa: PLC0415 - only in the group `test`

    with Chromium().started() as chromium:
        options = webdriver.ChromeOptions()
        options.debugger_address = chromium.address
        # Without this path, Selenium would look for a driver in the network.
        service = webdriver.ChromeService(DRIVER, popen_kw={"preexec_fn": prepare_child()})
        driver = webdriver.Chrome(options, service)
        try:
            yield driver
        finally:
            service.stop()


def resize(driver: Chrome, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
    """Give the page this size in CSS pixels, in light or dark mode."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
    )
    mode = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [mode]})
