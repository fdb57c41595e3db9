"""Puts a mutant into this process, whose modules are imported already."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from celery_rlock.server.script import Script
from tests.mutants.mutant import ROOT, Mutant


class CannotSwap(Exception):
    """The change has an effect only when the module is imported."""


def swap_in(mutant: Mutant) -> None:
    """From now on, this process runs the mutant."""
    if mutant.path.endswith(".lua"):
        _swap_script(mutant)
    else:
        _swap_code(mutant)


def _swap_script(mutant: Mutant) -> None:
    """For the tests that read the file, and for those that use a script that was loaded before."""
    shipped, changed, read_text = (ROOT / mutant.path).read_text(), mutant.source(), Path.read_text
    target = ROOT / mutant.path

    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        return changed if self == target else read_text(self, *args, **kwargs)

    Path.read_text = read  # type: ignore[method-assign]
    fresh = Script.load(target.stem)
    assert fresh.source == changed, "the package loads its scripts from another folder"
    for script in [found for found in gc.get_objects() if isinstance(found, Script)]:
        if script.source == shipped:
            object.__setattr__(script, "source", fresh.source)
            object.__setattr__(script, "sha", fresh.sha)


def _swap_code(mutant: Mutant) -> None:
    """Gives each function of the module its new code."""
    file = str(ROOT / mutant.path)
    if not mutant.edit.in_function:
        raise CannotSwap(mutant.name)
    shipped = list(_functions_in(compile((ROOT / mutant.path).read_text(), file, "exec")))
    changed = dict(_functions_in(compile(mutant.source(), file, "exec")))
    by_place = {(code.co_name, code.co_firstlineno): changed.get(key) for key, code in shipped}
    swapped = 0
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            old = function.__code__
            code = by_place.get((old.co_name, old.co_firstlineno))
            if code is None or code.co_freevars != old.co_freevars:
                continue
            function.__code__ = code
            swapped += 1
    if not swapped:
        raise CannotSwap(mutant.name)


def _functions_in(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """All code objects inside, each with a key that both versions of the module have."""
    seen = Counter[str]()
    waiting = [code]
    while waiting:
        for inner in [const for const in waiting.pop(0).co_consts if isinstance(const, CodeType)]:
            seen[inner.co_qualname] += 1
            yield (inner.co_qualname, seen[inner.co_qualname]), inner
            waiting.append(inner)
