"""The commands as tests run them: in this process, as a piped process, or on a terminal."""

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

from celery_rlock.core.client import connect
from celery_rlock.core.name import Owner
from celery_rlock.core.scripts import Scripts
from celery_rlock.ops.cli import rlock
from tests.support import processes
from tests.support.daemon import ROOT
from tests.support.processes import wait_until

PROJ = "tests.ops.operated_proj:app"

#: Before click 8.2 the runner mixes stderr into stdout unless it is told.
APART = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}

#: Roomy: starting Python and Celery on a loaded machine takes its time.
WITHIN = 60.0


def environment(url, **conf):
    """For a process of the app on this server."""
    return {**os.environ, "RLOCK_TEST_URL": url, "RLOCK_TEST_CONF": json.dumps(conf)}


class Locks:
    """Locks held by whomever a test wants."""

    def __init__(self, url):
        self.scripts = Scripts(connect(url))

    def hold(
        self, key, *, worker="worker-1@pod", delivery="d1", task_id="id-1", task="proj.charge", ttl=60.0
    ):
        owner = Owner(worker, delivery, task_id)
        self.scripts.acquire(self.scripts.name(key), owner, 1, ttl, task)
        return owner

    def wait(self, key, *task_ids, listener="listener"):
        name = self.scripts.name(key)
        for since, task_id in enumerate(task_ids, 1):
            self.scripts.client.zadd(name.waiters, {f"{listener}:d:{task_id}": 1e15 + since})

    def has_place(self, key, task_id):
        places = self.scripts.client.zrange(self.scripts.name(key).waiters, 0, -1)
        return any(place.decode().endswith(f":{task_id}") for place in places)

    def holder(self, key):
        """Owner's field in Redis, or None."""
        fields = self.scripts.client.hkeys(self.scripts.name(key).lock)
        return next((field.decode() for field in fields if not field.startswith(b"@")), None)


def run(app, *args, **options):
    """The command in this process, not on a terminal."""
    context = CLIContext(app=app, no_color=False, workdir=None)
    return CliRunner(**APART).invoke(rlock, list(args), obj=context, prog_name="celery rlock", **options)


def documents(result):
    """All JSON documents that a command wrote, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def command(*args, app=PROJ):
    given = ["-A", app] if app else []
    return [sys.executable, "-m", "celery", *given, "rlock", *args]


def piped(url, *args, app=PROJ, **options):
    """The real command, its output in pipes."""
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
    """The real command on a pseudo-terminal of this size; `screen` is what a user sees."""

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
        """What a user reads across the lines that the terminal's width broke."""
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
        """The exit code, once it has ended; all that it wrote is on the screen."""

        def has_ended():
            self.read()
            return self.process.poll() is not None

        wait_until(has_ended, timeout=WITHIN, what=f"the end of the command; it shows {self.text}")
        self.read(0.2)
        return self.process.returncode

    @property
    def is_as_before(self):
        """Whether the terminal's modes are what they were."""
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
    """Ctrl-C reaches the foreground process of a controlling terminal only."""
    die_with_us = processes._die_with(os.getpid())

    def prepare():
        if die_with_us is not None:
            die_with_us()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    return prepare
