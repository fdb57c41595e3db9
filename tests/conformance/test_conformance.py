"""Whatever plain Celery does with a task, it does with a locked task too.

The same code makes each task six times: as a plain task, as four locked tasks whose lock is free, each with
other options, and as one that finds its lock busy first. All of them run on the same worker. Their outcomes
are compared: states, results, retries, callbacks, signals and handlers with their order, and events.
"""

from __future__ import annotations

import pytest

from tests.conformance.comparison import CONFORMANCE
from tests.conformance.notes import ACKS, TWINS
from tests.conformance.outcomes import difference
from tests.conformance.runs import BROKERS, Fleet, runs_beside_packages, runs_on
from tests.conformance.shapes import SHAPES

pytestmark = pytest.mark.timeout(600)  # the first test of a fleet waits for all its cells

FLEETS = ["redis", *(pytest.param(name, marks=pytest.mark.slow) for name in [*BROKERS, "packages"][1:])]


@pytest.fixture(scope="module", params=FLEETS)
def fleet(request, fleet_redis, tmp_path_factory):
    """The workers of one broker, or of all packages; every cell has been published and is over."""
    if request.param == "packages":
        runs = runs_beside_packages(str(tmp_path_factory.mktemp("django") / "database"))
        fleet = Fleet(runs, fleet_redis.url, fleet_redis)
    else:
        node = fleet_redis if request.param == "redis" else request.getfixturevalue("rabbit")
        fleet = Fleet(runs_on(request.param), node.url, fleet_redis)
    fleet.run_all()
    return fleet


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_locked_task_does_what_a_plain_task_does(fleet, shape):
    twins = [twin for twin in TWINS[1:] if twin != "waited" or shape.waits]
    columns = {run.name.partition("-")[0] for run in fleet.runs}
    wrong = {}
    for column in columns:
        runs = [run for run in fleet.runs if run.name.partition("-")[0] == column]
        cells = [(run, ack, twin) for run in runs for ack in ACKS for twin in twins]
        found = {
            f"{run.name} {ack} {twin}": difference(*fleet.compare(run, ack, twin, shape))
            for run, ack, twin in cells
        }
        found = {cell: text for cell, text in found.items() if text}
        CONFORMANCE.add(shape.name, column, len(cells), list(found))
        wrong |= found
    if wrong:
        pytest.fail("\n".join(f"{cell}:\n{text}" for cell, text in wrong.items()), pytrace=False)
