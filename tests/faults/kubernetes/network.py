"""A network of one pod: a namespace, joined to this machine by a cable that can be pulled.

Only root can make one, and only where the `ip` command is. The names tell which test process made them: what
a killed one left behind is removed by the next.
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
        # RFC 2544's block for benchmarks: nothing else on this machine can have an address of it.
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
        """Whether this process may make one."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        try:
            with Network():
                return True
        except subprocess.CalledProcessError:
            return False

    def pull(self) -> None:
        """From now on packets are lost in silence, in both directions."""
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


def remove_leftovers() -> None:
    """Of test processes that are dead; never of one that lives."""
    for pid in set(re.findall(rf"^{PREFIX}-(\d+)", _ip("netns", "list"), re.MULTILINE)):
        if int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            _remove(f"{PREFIX}-{pid}", f"rlk{pid}")
