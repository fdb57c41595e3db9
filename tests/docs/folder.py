"""A page's files in a folder of their own, and what runs there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager

from tests.docs.pages import ROOT
from tests.support.workers import Worker

URL = "redis://localhost:6379"  # stands for the test's own server
PRELUDE = f"""
from celery import Celery
from celery_rlock import LockedTask, RLock, current_lock
app = Celery("proj", broker="{URL}/0", backend="{URL}/0", set_as_current=True)
"""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


class Folder:
    """A page's files, and what runs in their folder."""

    def __init__(self, page, path, url):
        self.page, self.path, self._url = page, path, url.removesuffix("/0")
        blocks = [block for block in page.blocks("python") if block.runs]
        for block in blocks:
            if block.title:
                self.write(block.title, block.code)
        self.program = [block.code for block in blocks if not block.title]
        if self.program and not any("Celery(" in block.code for block in blocks):
            self.program.insert(0, PRELUDE)

    def write(self, name, code):
        (self.path / name).write_text(code.replace(URL, self._url))

    def run(self):
        """Run all of the page; returns what it printed."""
        printed = ""
        with self.workers():
            if self.program:
                self.write("page_program.py", "\n".join(self.program))
                printed += self.python("page_program.py")
            for script in re.findall(r"^python (\w+\.py)$", self._commands(), re.MULTILINE):
                printed += self.python(script)
            if tests := sorted(file.name for file in self.path.glob("test_*.py")):
                self.python(*PYTEST, *tests)
        return printed

    @contextmanager
    def workers(self):
        """A worker for each `celery -A tasks worker` of the page, if the page has the file tasks.py."""
        apps = set(re.findall(r"celery -A (\w+) worker", self._commands()))
        files = {path.stem for path in self.path.glob("*.py")}
        env = {"PYTHONPATH": self._python_path}
        with ExitStack() as stack:
            yield [
                stack.enter_context(Worker.start(app, concurrency=2, env=env)) for app in sorted(apps & files)
            ]

    def python(self, *arguments, expected=0):
        """Run Python in this folder; returns what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": self._python_path, "RLOCK_PASSWORD": "of-the-page"},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout

    def _commands(self):
        return "\n".join(block.code for block in self.page.blocks("sh") if block.runs)

    @property
    def _python_path(self):
        return os.pathsep.join((str(self.path), str(ROOT)))
