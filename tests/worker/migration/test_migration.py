"""Every line of docs/coming-from.md does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.migration import when_published, when_run
from tests.worker.migration.bench import CHECKS, Bench
from tests.worker.migration.page import PROOFS, changes, rows

TESTS = Path(__file__).resolve().parents[2]
ROWS = rows()
NEEDS_WORKER = {theirs for theirs, check in CHECKS.items() if check.__module__ == when_run.__name__}


@pytest.fixture
def bench(server, tmp_path):
    return Bench(server, tmp_path)


def test_each_line_has_a_check_and_each_check_a_line():
    assert {row.theirs for row in ROWS} == set(CHECKS)
    assert {check.__module__ for check in CHECKS.values()} == {when_published.__name__, when_run.__name__}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            marks=pytest.mark.slow if row.theirs in NEEDS_WORKER else (),
            id=f"{row.section}: {row.theirs}",
        )
        for row in ROWS
    ],
)
def test_the_line_does_what_it_says(bench, row):
    CHECKS[row.theirs](bench, row.ours)


@pytest.mark.parametrize("line", changes())
def test_each_change_is_shown_by_a_test(line):
    proofs = [proof for beginning, proof in PROOFS.items() if line.startswith(beginning)]
    assert len(proofs) == 1
    for path, name in proofs[0]:
        assert f"def {name}(" in (TESTS / path).read_text()
