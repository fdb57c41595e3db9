"""A copy of the project, for the workers that tests start: they run a mutant there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant
from tests.support import daemon

_PARTS = ("celery_rlock", "lua", "tests", "examples", "pyproject.toml")


class CopiedTree:
    """The project in `folder`. One file at a time is a mutant."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0.0
        for part in _PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """Inside the `with` block, the tree has the mutant."""
        self._write(mutant.path, mutant.source())
        try:
            yield
        finally:
            self._write(mutant.path, (ROOT / mutant.path).read_text())

    def use(self) -> None:
        """From now on, this process starts its workers here."""
        daemon.ROOT = self._folder

    def _write(self, path: str, text: str) -> None:
        """Each time with another second: by that, Python knows that its compiled copy is out of date."""
        file = self._folder / path
        file.write_text(text)
        self._written = max(self._written + 2, file.stat().st_mtime)
        os.utime(file, (self._written, self._written))
