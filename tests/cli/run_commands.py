"""Runs the commands: in this process, as a process with pipes, or as a process on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from inspect import signature

import pyte
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_rlock.cli.commands import rlock
from celery_rlock.server.client import connect
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from tests.support import processes
from tests.support.daemon import ROOT
from tests.support.processes import wait_until

PROJ = "tests.cli.commands_app:app"

#: Before click 8.2 the runner mixes stderr into stdout by default.
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}

#: Generous: on a loaded machine it takes long to start Python and Celery.
WITHIN = 60.0


def environment(url, **conf):
    """The environment of a process whose app uses this server."""
    return {**os.environ, "RLOCK_TEST_URL": url, "RLOCK_TEST_CONF": json.dumps(conf)}


class Locks:
    """Takes locks in Redis in the name of any owner, and reads them."""

    def __init__(self, url):
        self.lock_server = RedisLockServer(connect(url))

    def hold(
        self,
        key,
        *,
        worker="worker-1@pod",
        delivery="d1",
        task_id="id-1",
        task="proj.charge",
        ttl=60.0,
        **more,
    ):
        owner = Owner(worker, delivery, task_id)
        self.lock_server.acquire(self.lock_server.redis_keys(key), owner, 1, ttl, task, **more)
        return owner

    def add_waiters(self, key, *task_ids, listener="listener"):
        waiters = self.lock_server.redis_keys(key).waiters
        for since, task_id in enumerate(task_ids, 1):
            self.lock_server.client.zadd(waiters, {f"{listener}:d:{task_id}": 1e15 + since})

    def is_waiting(self, key, task_id):
        places = self.lock_server.client.zrange(self.lock_server.redis_keys(key).waiters, 0, -1)
        return any(place.decode().endswith(f":{task_id}") for place in places)

    def holder(self, key):
        """The owner's field in Redis; None for a free lock."""
        fields = self.lock_server.client.hkeys(self.lock_server.redis_keys(key).lock)
        return next((field.decode() for field in fields if not field.startswith(b"@")), None)


def run(app, *args, **options):
    """Run the command in this process, without a terminal."""
    context = CLIContext(app=app, no_color=False, workdir=None)
    return CliRunner(**APART).invoke(rlock, list(args), obj=context, prog_name="celery rlock", **options)


def documents(result):
    """All JSON documents that the command wrote, one per line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def command(*args, app=PROJ):
    given = ["-A", app] if app else []
    return [sys.executable, "-m", "celery", *given, "rlock", *args]


def piped(url, *args, app=PROJ, **options):
    """Run the real command with its output in pipes."""
    env = {**environment(url), **options.pop("env", {})}
    return subprocess.run(
        command(*args, app=app),
        env=env,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WITHIN,
        check=False,
        **options,
    )


class Terminal:
    """Runs the real command on a pseudo-terminal of this size; `screen` is what a user sees."""

    def __init__(self, url, *args, columns=100, rows=30, env=None, app=PROJ):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        more = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **(env or {})}
        variables = {name: value for name, value in {**environment(url), **more}.items() if value}
        self.process = subprocess.Popen(
            command(*args, app=app),
            env=variables,
            cwd=ROOT,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal(slave),  # noqa: PLW1509 - as in support/processes.py
        )

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def joined(self):
        """The screen without line breaks and spaces, for texts that the terminal wraps."""
        return "".join(line for line in self.screen.display).replace(" ", "")

    def read(self, seconds=0.05):
        while select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536)
            self.raw += data
            self._stream.feed(data)

    def shows(self, text):
        self.read()
        return text.replace(" ", "") in self.joined

    def await_text(self, text):
        try:
            wait_until(lambda: self.shows(text), timeout=WITHIN, what=f"{text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen shows:\n{self.text}") from None

    def type(self, keys):
        os.write(self._master, keys.encode())

    def end(self):
        """Wait for the command to end, with all its output on the screen, and return its exit code."""

        def has_ended():
            self.read()
            return self.process.poll() is not None

        wait_until(has_ended, timeout=WITHIN, what=f"the end of the command; it shows {self.text}")
        self.read(0.2)
        return self.process.returncode

    @property
    def is_as_before(self):
        """Whether the terminal's modes are restored."""
        return termios.tcgetattr(self._slave) == self.before

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def _own_terminal(slave):
    """Ctrl-C reaches only the foreground process of a controlling terminal."""
    prepare_child = processes.prepare_child()

    def prepare():
        prepare_child()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    return prepare
