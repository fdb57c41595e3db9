"""Imports point one way, and what is promised has a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "celery_rlock"

#: All of the contract's semantics.
DUE = set(range(1, 17))


def imports(module: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", sorted((PACKAGE / "core").glob("*.py")), ids=lambda module: module.stem)
def test_the_core_knows_neither_celery_nor_what_is_built_on_it(module):
    for name in imports(module):
        assert name.split(".")[0] not in {"celery", "kombu", "billiard"}
        if name.startswith("celery_rlock"):
            assert name.startswith(("celery_rlock.core", "celery_rlock.errors"))


@pytest.mark.parametrize("module", sorted(PACKAGE.rglob("*.py")), ids=lambda module: module.stem)
def test_a_module_stays_small(module):
    assert len(module.read_text().splitlines()) <= 200


def test_every_semantics_that_is_built_has_a_test_that_names_it():
    named = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for line in re.findall(r'"""Semantics ([^"]*?)[:.]', file.read_text()):
            named |= {int(number) for number in re.findall(r"\d+", line)}
    assert named >= DUE
