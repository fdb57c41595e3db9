"""Real `celery worker` and `celery beat` processes."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.daemon import Daemon

QUIET = ("gossip", "mingle", "heartbeat")


class Worker(Daemon):
    """A worker of `app` ("package.module:attribute"); `env` adds to its environment.

    `hostname` is the node name, a unique one by default; `args` are appended to the command line;
    `without=()` turns gossip, mingle and heartbeat on again.
    """

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Sequence[str] = ("celery",),
        hostname: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        without: Sequence[str] = QUIET,
    ) -> None:
        self.nodename = hostname or f"worker-{uuid.uuid4().hex[:8]}@test"
        super().__init__(self.nodename, env)
        self._app = app
        self._options = ["--pool", pool, "-c", str(concurrency), "-Q", ",".join(queues), "-n", self.nodename]
        self._options += ["-l", "INFO", *(f"--without-{feature}" for feature in without), *args]

    @classmethod
    def start(cls, app: str, **options: Any) -> Worker:
        """A ready worker, run in the repository's root; the options are the constructor's."""
        return cls(app, **options).started()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", self._app, "worker", *self._options]

    def is_ready(self) -> bool:
        return f"{self.nodename} ready." in self.log_since_start


class Beat(Daemon):
    """One scheduler. Its schedule file survives `restart`."""

    def __init__(self, app: str, *, env: Mapping[str, str] | None = None, args: Sequence[str] = ()) -> None:
        super().__init__("beat", env)
        self._app = app
        self._args = args

    @classmethod
    def start(cls, app: str, *, env: Mapping[str, str] | None = None, args: Sequence[str] = ()) -> Beat:
        """A running `celery beat` of `app`; `args` are appended to the command line."""
        return cls(app, env=env, args=args).started()

    def command(self) -> list[str]:
        options = ["-s", str(self.directory / "schedule"), "--pidfile", "", "-l", "INFO", *self._args]
        return [sys.executable, "-m", "celery", "-A", self._app, "beat", *options]

    def is_ready(self) -> bool:
        return "beat: Starting..." in self.log_since_start
