"""Explores the scenarios and prints what was tried: `python -m tests.interleavings --help`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from tests.interleavings.explorer import Explorer, Report
from tests.interleavings.scenarios import BOUNDS, SCENARIOS
from tests.interleavings.virtual_server import VirtualServer
from tests.support.servers import DEFAULT_KIND, Server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--states", type=int, help="about how many states of each scenario (default: as CI does)"
    )
    parser.add_argument("--faults", type=int, help="how many steps may be faults (default: as CI does)")
    parser.add_argument("--delays", type=int, help="how often time may pass although a process could act")
    parser.add_argument("--seconds", type=float, default=3600.0, help="at most so long for each scenario")
    parser.add_argument("--only", default="", help="only scenarios whose name contains this text")
    chosen = parser.parse_args()
    bounds = BOUNDS
    if chosen.faults is not None or chosen.delays is not None:
        bounds = ((chosen.faults or 0, chosen.delays or 0),)
    total = Report("total", complete=True)
    with Server.start(DEFAULT_KIND) as server:
        client = server.client(decode_responses=True)
        for scenario in (scenario for scenario in SCENARIOS if chosen.only in scenario.name):
            for faults, delays in bounds:
                bounded = replace(
                    scenario,
                    name=f"{scenario.name}, faults {faults}, delays {delays}",
                    faults=faults,
                    delays=delays,
                )
                report = Explorer(bounded, VirtualServer(client)).explore(
                    chosen.states or scenario.states, chosen.seconds
                )
                print(report, flush=True)
                if report.violation:
                    return 1
                total.states += report.states
                total.transitions += report.transitions
                total.requests += report.requests
                total.seconds += report.seconds
                total.depth = max(total.depth, report.depth)
                total.complete &= report.complete
    print(total)
    return 0


if __name__ == "__main__":
    sys.exit(main())
