"""A private RabbitMQ node on loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path

import amqp

from tests.support.daemon import Daemon
from tests.support.processes import free_port

# Not the wrapper in /usr/sbin, which changes to the user `rabbitmq`.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
HOST = "127.0.0.1"
# One scheduler that does not spin while it waits: the cores belong to the tests.
FRUGAL = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"


class Epmd(Daemon):
    """Erlang's port mapper. Without ours, the node would start one as a daemon that outlives the tests."""

    def __init__(self) -> None:
        super().__init__("epmd")
        self.port = free_port()

    def command(self) -> list[str]:
        return [shutil.which("epmd") or "epmd", "-address", HOST, "-port", str(self.port)]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            return True
        return False


class Rabbit(Daemon):
    """One node with the vhost `/` and the user guest, empty at every start, always on the same port.

    Like every daemon of the tests it dies with the test process, and so does its epmd.
    """

    ready_within = 60.0

    def __init__(self) -> None:
        super().__init__("rabbitmq-server")
        self.port = free_port()
        self.url = f"amqp://guest:guest@{HOST}:{self.port}//"
        self._epmd = Epmd()
        self._env = self._environment(self.directory)

    @classmethod
    def available(cls) -> bool:
        """Whether this machine can run one."""
        return SCRIPT.exists() and shutil.which("epmd") is not None

    @classmethod
    def start(cls) -> Rabbit:
        """A ready node."""
        return cls().started()

    def command(self) -> list[str]:
        return [str(SCRIPT)]

    def launch(self) -> None:
        for part in ("home", "mnesia"):
            shutil.rmtree(self.directory / part, ignore_errors=True)
        (self.directory / "home").mkdir()
        self._epmd.started()
        super().launch()

    def is_ready(self) -> bool:
        """Its log says so, and a client can log in."""
        if "Server startup complete" not in self.log_since_start:
            return False
        login = amqp.Connection(f"{HOST}:{self.port}", connect_timeout=5)
        with contextlib.suppress(OSError, amqp.AMQPError), login:
            return True
        return False

    def stop(self, timeout: float = 0.0) -> None:
        """End it at once: it has nothing to save."""
        super().stop(timeout)
        self._epmd.stop(timeout)

    def _environment(self, directory: Path) -> dict[str, str]:
        return {
            "HOME": str(directory / "home"),
            "RABBITMQ_NODENAME": f"rlock-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": FRUGAL,
            # Makes the script become the node instead of its shell parent, so that the signal at the test
            # process's death reaches the node itself.
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self._epmd.port),
        }
