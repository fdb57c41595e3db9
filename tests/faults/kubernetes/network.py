"""The network of one pod: a namespace, connected to this machine by a virtual cable that can be pulled.

Only root can create one, and only where the `ip` command is installed. The names contain the pid of the test
process, so that the next test process removes what a killed one left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess

import psutil
from typing_extensions import Self

PREFIX = "rlockfleet"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


class Network:
    """`host` is this machine's address on the cable; a command behind `within` runs at the other end."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.name = f"{PREFIX}-{pid}"
        self.cable, inside = f"rlk{pid}", f"rlp{pid}"
        # RFC 2544 reserves this block for benchmarks, so no other interface of this machine uses it.
        subnet = f"198.18.{pid // 64 % 256}.{pid % 64 * 4}".rpartition(".")
        self.host, address = (f"{subnet[0]}.{int(subnet[2]) + offset}" for offset in (1, 2))
        self.within = ("ip", "netns", "exec", self.name)
        remove_leftovers()
        _ip("netns", "add", self.name)
        _ip("link", "add", self.cable, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name)
        _ip("address", "add", f"{self.host}/30", "dev", self.cable)
        _ip("link", "set", self.cable, "up")
        for words in (
            ("address", "add", f"{address}/30", "dev", inside),
            ("link", "set", inside, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *words)

    @staticmethod
    def available() -> bool:
        """Whether this process may create one."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        try:
            with Network():
                return True
        except subprocess.CalledProcessError:
            return False

    def pull(self) -> None:
        """Lose all packets from now on, in both directions, without an error."""
        _ip("link", "set", self.cable, "down")

    def plug(self) -> None:
        _ip("link", "set", self.cable, "up")

    def remove(self) -> None:
        _remove(self.name, self.cable)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove(name: str, cable: str) -> None:
    for words in (("link", "delete", cable), ("netns", "delete", name)):
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(*words)


def names() -> str:
    """The names of all network namespaces, as `ip` lists them."""
    return _ip("netns", "list")


def cables() -> str:
    """The names of all network devices, as `ip` lists them."""
    return _ip("link", "show")


def remove_leftovers() -> None:
    """Remove the networks of dead test processes, never that of a living one."""
    for pid in set(re.findall(rf"^{PREFIX}-(\d+)", names(), re.MULTILINE)):
        if int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            _remove(f"{PREFIX}-{pid}", f"rlk{pid}")
