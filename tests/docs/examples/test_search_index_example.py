"""`python -m examples.search_index`: its figures are right, and it fails when they are wrong."""

from __future__ import annotations

import pytest

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """The example, and a copy without a pending call. Both run at the same time."""
    dropped = broken_copy("search_index/app.py", ", lock_pending=1", "")
    return start_example("search_index"), start_example("search_index", root=dropped)


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_the_index_is_stale_only_if_a_call_during_a_rebuild_is_dropped(example):
    rebuilds, at_once, missing = example.figures("without the lock")
    assert (rebuilds > 50, at_once > 1, missing) == (True, True, 0)
    rebuilds, at_once, missing = example.figures('with lock_from="publish"')
    assert (at_once, missing) == (1, 1)
    rebuilds, at_once, missing = example.figures("and lock_pending=1")
    assert (rebuilds < 30, at_once, missing) == (True, 1, 0)


def test_it_fails_when_the_call_during_a_rebuild_is_dropped(broken):
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures("and lock_pending=1")[2] == 1
