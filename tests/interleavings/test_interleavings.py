"""Every interleaving of the shipped scripts and the client code, within bounds. See docs/proof.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.interleavings.explorer import Explorer, Violation
from tests.interleavings.mutations import MUTATIONS
from tests.interleavings.scenarios import BOUNDS, SCENARIOS
from tests.interleavings.virtual_server import VirtualServer

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture
def text_client(server):
    return server.client(decode_responses=True)


@pytest.mark.parametrize("bounds", BOUNDS, ids=lambda bounds: f"faults {bounds[0]} delays {bounds[1]}")
@pytest.mark.parametrize("name", BY_NAME)
def test_no_order_of_steps_breaks_a_promise(name, bounds, text_client):
    """Semantics 3: also when a process dies, a reply is lost, a request is late, or a lease ends."""
    faults, delays = bounds
    scenario = replace(BY_NAME[name], faults=faults, delays=delays)
    report = Explorer(scenario, VirtualServer(text_client)).explore(scenario.states)
    assert not report.violation, str(report)
    assert report.complete or report.states > scenario.states


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_explorer_finds(mutation, text_client):
    """Each defect is put into the scripts, and the steps that were found lead to it again."""
    scenario = replace(BY_NAME[mutation.scenario], faults=mutation.faults, delays=mutation.delays)
    server = VirtualServer(text_client, mutation.sources())
    report = Explorer(scenario, server).explore(20_000)
    assert report.violation
    assert report.steps
    again = Explorer(scenario, server)
    with pytest.raises(Violation):
        for _ in again.replayed(report.steps):
            pass


def test_the_same_scenario_gives_the_same_states(text_client):
    scenario = replace(BY_NAME["two users"], faults=0, delays=0)
    first, second = (Explorer(scenario, VirtualServer(text_client)).explore() for _ in range(2))
    assert first.complete
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)
