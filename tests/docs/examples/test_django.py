"""`python -m examples.django`: its figures are right, and it fails when they are wrong."""

from __future__ import annotations

import pytest

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def examples(start_example, broken_copy):
    """The example, and a copy whose views lock other keys than the tasks. Both run at the same time."""
    apart = broken_copy("django/bank/locking.py", "RLock(key.format(", 'RLock("view:" + key.format(')
    return start_example("django"), start_example("django", root=apart)


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_views_and_tasks_lose_deposits_without_the_lock(example):
    deposits, balance, lost = example.figures("without the lock")
    assert lost == deposits - balance > 0


def test_views_and_tasks_lose_no_deposits_with_the_lock(example):
    deposits, balance, lost = example.figures("with the lock")
    assert (balance, lost) == (deposits, 0)


def test_a_view_answers_409_or_waits_while_a_task_has_the_lock(example):
    assert "answers 409, Retry-After: 1" in example.output()
    assert "answers 200; changes while the task ran: 0" in example.output()


def test_a_task_waits_while_a_view_has_the_lock(example):
    assert "in state RETRY; changes while the view ran: 0" in example.output()
    assert "after the view the task is in state SUCCESS" in example.output()


def test_it_fails_when_views_and_tasks_lock_different_keys(broken):
    assert broken.process.returncode != 0, broken.output()
