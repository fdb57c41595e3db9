"""The containers of the manifests, run as processes with their own command, environment and probes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.faults.kubernetes.manifests import ROOT, render
from tests.support.daemon import Daemon
from tests.support.servers import Server

ADMIN = "user admin on nopass ~* &* +@all"
#: Makes the whole file system read-only for one command, except one folder. The mounts end with the process.
READ_ONLY = 'mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
#: Settings that the test replaces: the server's port, and folders that exist only in a container.
REPLACED = ("port", "dir", "aclfile")


def new_secret() -> dict[str, str]:
    """The passwords and the ACL file that examples/kubernetes/new-secret prints."""
    script = subprocess.run([ROOT / "new-secret"], check=True, capture_output=True, text=True)
    return {
        name: value
        for document in yaml.safe_load_all(script.stdout)
        for name, value in document["stringData"].items()
    }


def document(kind: str, name: str) -> dict:
    [found] = [each for each in render("base") if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


class Valkey(Server):
    """A server with the ConfigMap's settings and the Secret's users, plus an admin user for the test."""

    def __init__(self, secret: dict[str, str], folder: Path) -> None:
        users = folder / "users.acl"
        users.write_text(f"{secret['users.acl']}\n{ADMIN}\n")
        lines = document("ConfigMap", "valkey")["data"]["valkey.conf"].splitlines()
        words = [line.split() for line in lines if line and not line.startswith("#")]
        flags = {name.replace("-", "_"): value for name, value in words if name not in REPLACED}
        super().__init__("valkey", aclfile=users, **flags)
        self.url = f"redis://admin:none@127.0.0.1:{self.port}/0"


@cache
def can_be_read_only() -> bool:
    """Whether this process may create mounts that only its own children see."""
    with TemporaryDirectory() as folder:
        done = subprocess.run([*_read_only(folder), "true"], check=False, capture_output=True)
    return done.returncode == 0


def _read_only(folder: object) -> list[str]:
    return ["unshare", "--mount", "sh", "-c", READ_ONLY, str(folder)]


class Container(Daemon):
    """The container of a Deployment, with a temporary folder as its /run/celery.

    It can write to that folder only, where this machine allows private mounts.
    """

    def __init__(
        self, name: str, secret: dict[str, str], port: int, folder: Path, more: tuple[str, ...] = ()
    ):
        pod = document("Deployment", name)["spec"]["template"]["spec"]
        [self._container] = pod["containers"]
        self._folder, self._more = folder, more
        settings = document("ConfigMap", "settings")["data"]
        env = {key: value.replace("@valkey:6379", f"@127.0.0.1:{port}") for key, value in settings.items()}
        for variable in self._container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            env[variable["name"]] = secret[reference["key"]] if reference else self._here(variable["value"])
        env["PYTHONPATH"] = str(ROOT)
        super().__init__(name, env)

    def _here(self, word: str) -> str:
        return word.replace("/run/celery", str(self._folder))

    @property
    def alive_file(self) -> Path:
        return self._folder / "alive"

    def command(self) -> list[str]:
        celery, *words = [*self._container["command"], *self._container["args"], *self._more]
        assert celery == "celery"
        within = _read_only(self._folder) if can_be_read_only() else []
        return [*within, sys.executable, "-m", "celery", *map(self._here, words)]

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another command of the app in the environment of this container."""
        env = {**os.environ, **self._env}
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=env, check=False, capture_output=True, text=True
        )

    def probe(self, name: str) -> bool:
        """Whether the probe succeeds, as the kubelet would run it."""
        command = self._container[f"{name}Probe"]["exec"]["command"]
        done = subprocess.run(list(map(self._here, command)), check=False, capture_output=True)
        return done.returncode == 0

    def is_ready(self) -> bool:
        return self.probe("startup")
