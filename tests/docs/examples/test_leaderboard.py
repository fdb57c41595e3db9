"""`python -m examples.leaderboard`: right figures on one server and in a Cluster, else it fails."""

from __future__ import annotations

import pytest

from tests.conftest import DEFAULT_KIND
from tests.docs.examples.cluster import small_cluster, url_of

#: It takes long, and shows no promise of docs/semantics.md that other tests do not show.
pytestmark = pytest.mark.slow

GAMES, PUBLISHED = 120, 150


@pytest.fixture(scope="module")
def nodes():
    with small_cluster(DEFAULT_KIND) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def examples(start_example, broken_copy, nodes):
    """The example on one server and in a Cluster, and a copy in which a user's games may overlap."""
    apart = broken_copy("leaderboard/app.py", '"board:{board}:user:{user}"', '"game:{game}"')
    return {
        "server": start_example("leaderboard"),
        "cluster": start_example("leaderboard", url_of(nodes)),
        "broken": start_example("leaderboard", root=apart),
    }


@pytest.fixture(params=["server", "cluster"])
def example(request, examples, ended):
    return ended(examples[request.param])


def test_it_succeeds_and_leaves_nothing_behind(example):
    assert example.process.returncode == 0, example.output()


def test_without_the_lock_points_are_computed_in_vain(example):
    published, recorded, again, wrong = example.figures("without the lock")
    assert (published, recorded, wrong) == (PUBLISHED, GAMES, 0)
    assert again > 0


def test_with_the_lock_each_game_is_computed_and_recorded_once(example):
    assert example.figures("with LockedTask") == [PUBLISHED, GAMES, 0, 0]


def test_the_ranking_is_bounded_and_all_keys_expire(example):
    assert "The ranking has 10 of 15 users: user-15, user-14, user-13 …" in example.output()
    assert "151 keys are in 1 slot. Keys that never expire: 0." in example.output()


def test_boards_and_locks_are_spread_over_the_cluster(examples, ended, nodes):
    ended(examples["cluster"])
    boards = [len(node.client().keys("{board:*")) for node in nodes]
    locks = [len(node.client().keys("rlock:{board:2:user:*")) for node in nodes]  # their tokens, for a minute
    assert sum(boards) == 2 * 151
    assert sum(count > 0 for count in locks) > 1


def test_it_fails_when_the_games_of_a_user_overlap(examples, ended):
    broken = ended(examples["broken"])
    assert broken.process.returncode == 1, broken.output()
    assert broken.figures("with LockedTask")[2] > 0
