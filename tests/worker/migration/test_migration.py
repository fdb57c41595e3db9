"""Every line of docs/migration.md does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unique.migration import when_published, when_run
from tests.unique.migration.bench import Bench
from tests.unique.migration.page import changes, rows
from tests.unique.migration.proofs import PROOFS
from tests.unique.migration.registry import CHECKS

TESTS = Path(__file__).resolve().parents[1]
ROWS = rows()


@pytest.fixture
def bench(server, tmp_path):
    return Bench(server, tmp_path)


def test_each_line_is_proved_and_nothing_else():
    assert {row.theirs for row in ROWS} == set(CHECKS)
    assert {check.__module__ for check in CHECKS.values()} == {when_published.__name__, when_run.__name__}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.theirs}")
def test_the_line_does_what_it_says(bench, row):
    CHECKS[row.theirs](bench, row.ours)


@pytest.mark.parametrize("line", changes())
def test_each_change_is_shown_by_a_test(line):
    proofs = [proof for beginning, proof in PROOFS.items() if line.startswith(beginning)]
    assert len(proofs) == 1
    for path, name in proofs[0]:
        assert f"def {name}(" in (TESTS / path).read_text()
