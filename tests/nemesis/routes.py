"""Makes this process connect to the proxies of its `Link` in place of the lock servers.

Sentinel and Cluster tell their clients the ports of the servers. So the process connects to other ports, as
with a rule of a firewall, and nothing else of the client knows of the proxies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

VARIABLE = "NEMESIS_ROUTES"


def environment(routes: Mapping[int, int]) -> dict[str, str]:
    """The environment of a process whose connections to the first ports go to the second ones."""
    return {VARIABLE: ",".join(f"{port}:{proxy}" for port, proxy in routes.items())}


def install() -> None:
    """From now on this process connects as its environment says."""
    pairs = [pair.split(":") for pair in os.environ.get(VARIABLE, "").split(",") if pair]
    routes = {int(port): int(proxy) for port, proxy in pairs}
    connect = socket.socket.connect

    def redirected(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            address = (address[0], routes.get(address[1], address[1]), *address[2:])
        connect(self, address)

    socket.socket.connect = redirected
