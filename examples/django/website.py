"""The project as processes: Django's server and one worker."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.embedded.celery_processes import CeleryProcesses
from examples.embedded.processes import Processes
from examples.embedded.valkey import Valkey, free_port

PROJECT = Path(__file__).parent
MANAGE = (sys.executable, str(PROJECT / "manage.py"))


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any] = field(default_factory=dict)
    retry_after: str | None = None


class Site:
    """The running project with an empty database. The constructor sets up Django in this process too."""

    def __init__(self, processes: Processes) -> None:
        env = {
            "DJANGO_SETTINGS_MODULE": "bank.settings",
            "REDIS_URL": Valkey(processes).url,
            "BANK_DB": str(processes.directory / "bank.sqlite"),
        }
        _set_up_here(env)
        port = free_port()
        self._address = f"http://127.0.0.1:{port}"
        server = processes.start("django", (*MANAGE, "runserver", "--noreload", f"127.0.0.1:{port}"), env)
        celery = CeleryProcesses(processes, "bank", env, PROJECT)
        celery.start_workers(("worker",), "-c", "4")
        server.wait_until(self._answers)

    def post(self, account: int, action: str) -> Answer:
        request = urllib.request.Request(f"{self._address}/accounts/{account}/{action}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answer(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, retry_after=error.headers["Retry-After"])

    def _answers(self) -> bool:
        try:
            return self.post(0, "nothing").status == 404
        except OSError:
            return False


def _set_up_here(env: dict[str, str]) -> None:
    """Set up Django here, so that this process can publish tasks and read accounts."""
    sys.path.insert(0, str(PROJECT))
    os.environ.update(env)
    import django  # noqa: PLC0415 - it reads these settings
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
