"""The outages of `tests.support.outages` that make the lock unavailable, each with the caller's error."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest

from tests.support import outages
from tests.support.servers import DEFAULT_KIND, Server

#: The queue of the fleet of these tests, and the `socket_timeout` of its locks.
QUEUE = "outages"
TIMEOUT = 0.5
PASSWORD = "right-and-secret"
OTHER_PASSWORD = "another-secret"


class Outage(NamedTuple):
    """`with outage(server):` the server is in trouble, and LockUnavailable matches `error`."""

    name: str
    block: object
    error: str

    def __call__(self, server):
        return self.block(server)

    def __str__(self):
        return self.name


def server_with_password(kind=DEFAULT_KIND):
    """A server for locks alone, which wants a password."""
    server = Server(kind, requirepass=PASSWORD)
    server.url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
    return server.started()


def slow(value):
    """A parameter for `make test-all` only."""
    return pytest.param(value, marks=pytest.mark.slow)


STOPPED = Outage("stopped", outages.stopped, "ConnectionError: .*refused")
SILENT = Outage("silent", outages.silent, "TimeoutError")
PAUSED = Outage("paused", outages.paused, "TimeoutError")
READ_ONLY = Outage("read_only", outages.read_only, "read only replica")
LOADING = Outage("loading", outages.loading, "BusyLoadingError")
PASSWORD_CHANGED = Outage(
    "password_changed",
    partial(outages.other_password, right=PASSWORD, other=OTHER_PASSWORD),
    "AuthenticationError",
)
WITHOUT_RIGHTS = Outage("without_rights", outages.without_rights, "NoPermissionError")

#: While one of these lasts, no caller gets a lock. (A full server still grants locks.)
OUTAGES = [STOPPED, SILENT, PAUSED, READ_ONLY, LOADING, PASSWORD_CHANGED, WITHOUT_RIGHTS]

#: After one of these, the server still has its data.
KEEPING_DATA = [SILENT, PAUSED, LOADING, PASSWORD_CHANGED, WITHOUT_RIGHTS]
