"""How `make test` shares the tests among its processes: by file, and the files that take longest first.

xdist starts with the files that have the most tests. Ours with few tests take longest, because their tests
start fleets and wait for leases. One of them alone at the end would leave all other processes idle.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: The parts that take longest, in this order. The last lines of a CI run show the slowest tests.
LONGEST = (
    "tests/nemesis/test_nemesis.py",
    "tests/faults/topology/test_fleet_under_load.py",
    "tests/faults/kubernetes/test_fleet_updates.py",
    "tests/faults/worker/test_shutdowns.py",
    "tests/faults/worker/test_redelivery.py",
    "tests/attacks/test_signals.py",
    "tests/faults/topology/test_sentinel_overlaps.py",
    "tests/conformance/test_conformance.py[topic]",
    "tests/conformance/test_conformance.py[direct]",
    "tests/faults/kubernetes/test_fleet_failures.py",
    "tests/faults/worker/test_killed_children.py",
    "tests/docs/examples/test_demo.py",
    "tests/conformance/test_conformance.py[classic]",
    "tests/conformance/test_conformance.py[packages]",
    "tests/attacks/test_waiters.py",
    "tests/worker/test_limits.py",
    "tests/worker/test_superseded_calls.py",
    "tests/worker/test_storm_of_calls.py",
    "tests/worker/test_pending_calls.py",
    "tests/worker/test_replace.py",
    "tests/worker/test_replaced_calls.py",
    "tests/redis/test_script_places.py",
    "tests/attacks/test_threads.py",
    "tests/attacks/test_late_packets.py",
    "tests/worker/test_every_pool.py",
    "tests/worker/test_waiters_without_broker.py",
    "tests/faults/server/test_lock_in_outage.py",
    "tests/faults/topology/test_replication.py",
    "tests/faults/topology/test_sentinel.py",
    "tests/attacks/test_connections.py",
    "tests/faults/server/test_run_in_outage.py",
    "tests/conformance/test_conformance.py[redis]",
    "tests/worker/test_woken_on_every_pool.py",
    "tests/smoke/test_smoke.py",
    "tests/faults/kubernetes/test_manifests_run.py",
    "tests/attacks/test_two_servers.py",
    "tests/faults/topology/test_setups.py",
    "tests/docs/test_code.py",
    "tests/worker/test_unique_tasks_that_do_not_run.py",
    "tests/testing/test_calls_in_a_worker.py",
    "tests/worker/test_waiters_of_stopping_workers.py",
    "tests/worker/test_periodic_tasks.py",
    "tests/cli/test_page.py",
    "tests/cli/test_page_in_a_browser.py",
    "tests/cli/test_inspect_locks.py",
    "tests/typing/test_user_code.py",
    "tests/worker/test_broker_away_at_a_busy_retry.py",
    "tests/worker/test_crossed_keys.py",
    "tests/attacks/test_tokens.py",
    "tests/docs/examples/test_periodic.py",
    "tests/cli/test_cli_terminal.py",
    "tests/worker/test_runs_ended_from_outside.py",
    "tests/docs/examples/test_inventory.py",
)
#: Each value of the fixture `fleet` of these files can have a process of its own.
SPLIT = ("tests/conformance/test_conformance.py",)


class LongestFirst(LoadFileScheduling):
    """xdist's `--dist loadfile`, with another order of the files."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=place), last=False)
        super()._assign_work_unit(node)


def part_of(nodeid: str) -> str:
    """The tests that must run in one process: those of a file, or of one value of its fleet's fixture."""
    path = nodeid.partition("::")[0]
    value = re.search(r"\[(\w+)", nodeid) if path in SPLIT else None
    return f"{path}[{value[1]}]" if value else path


def place(part: str) -> int:
    """Where a part stands in line. Parts with the same place keep xdist's order."""
    return LONGEST.index(part) if part in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst | None:
    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None
