"""Runs the mutants: `python -m tests.mutants --help`. docs/proof.md has the figures."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.catalogue import all_mutants, known_survivors
from tests.mutants.copied_tree import CopiedTree
from tests.mutants.harness import SURVIVED, Harness, Outcome
from tests.mutants.mutant import ROOT, Mutant

_SCRIPTS = "acquire full_server inputs join line pass pending places redelivery release renew replace wait"
_LOCKS = "execution fork lost_replies pending_call renewal rlock rlock_limit told_in_time"
_ATTACKS = "clocks late_packets threads tokens told two_clients waiters"
_OPTIONS = "backoff headers interrupts overtaken plan redelivery reschedule"
_WORKERS = "busy_lock redelivered_messages revoked_waiters waiters_in_a_worker woken_in_order"
#: Which tests run for the mutants of a folder. All of these run the code in this process.
TESTS = {
    "lua": [
        *(f"tests/redis/test_script_{part}.py" for part in _SCRIPTS.split()),
        "tests/redis/test_script_successors.py",
        "tests/redis/test_pending_model.py",
        "tests/redis/test_places_model.py",
    ],
    "core": [
        "tests/unit/test_background.py",
        "tests/unit/test_forgotten.py",
        "tests/unit/test_loop.py",
        *(f"tests/redis/test_{part}.py" for part in _LOCKS.split()),
        *(f"tests/attacks/test_{part}.py" for part in _ATTACKS.split()),
        "tests/testing/test_eager_pending.py",
    ],
    "running": ["tests/testing", *(f"tests/unit/test_{part}.py" for part in _OPTIONS.split())],
    "worker": ["tests/testing", "tests/unit/test_overtaken.py"],
}
#: With `--in-workers`, for every folder.
TESTS_WITH_WORKERS = [
    *(f"tests/worker/test_{part}.py" for part in _WORKERS.split()),
    "tests/faults/worker/test_killed_children.py",
    "tests/cli/test_inspect_locks.py",
]
#: A second kind of server finds nothing more. Some tests measure, or put defects into the scripts themselves.
LEFT_OUT = (
    "redis]",
    "redis-",
    "test_the_model_finds",
    "test_the_model_notices",
    "test_with_a_thousand_owners",
    "fuzz",
    "test_architecture",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="folders or files: lua, core/lease.py (default: all)")
    parser.add_argument("--sample", type=float, default=1.0, help="the share of the mutants that is run")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--names", type=Path, help="a file with the names of the mutants to run")
    parser.add_argument("--tests", nargs="*", help="use these test files instead")
    parser.add_argument(
        "--in-workers", action="store_true", help="run the mutants in real workers, which takes much longer"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="use tests of so long for each mutant")
    parser.add_argument("--facts", type=Path, help="keep in this file what the run without a mutant shows")
    parser.add_argument("--results", type=Path, help="append each outcome to this file, as JSON")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    folders = defaultdict(list)
    for mutant in chosen_mutants(chosen):
        folders[mutant.folder].append(mutant)
        if chosen.list:
            print(mutant.name)
    surprises = 0
    for folder, mutants in () if chosen.list else folders.items():
        surprises += run(folder, mutants, chosen)
    return 1 if surprises else 0


def chosen_mutants(chosen: argparse.Namespace) -> list[Mutant]:
    """Those of the wanted files, and of them the sample. It depends on the names, not on their order."""
    names = set(chosen.names.read_text().splitlines()) if chosen.names else None
    return [
        mutant
        for mutant in all_mutants()
        if not chosen.only or mutant.path.removeprefix("celery_rlock/").startswith(tuple(chosen.only))
        if names is None or mutant.name in names
        if random.Random(f"{chosen.seed} {mutant.name}").random() < chosen.sample
    ]


def run(folder: str, mutants: list[Mutant], chosen: argparse.Namespace) -> int:
    """Run the mutants of a folder and print their score. Returns how many survive that are not listed."""
    # Without shrinking: the first failure is enough.
    settings.register_profile(
        "mutants", database=None, phases=[Phase.explicit, Phase.generate], deadline=None
    )
    settings.load_profile("mutants")
    score, known, begin = Counter[str](), known_survivors(), time.monotonic()

    def report(outcome: Outcome) -> None:
        is_known = outcome.verdict == SURVIVED and outcome.mutant.name in known
        score["survived, listed" if is_known else outcome.verdict] += 1
        if outcome.verdict == SURVIVED and not is_known:
            print(f"survived: line {outcome.mutant.line} of {outcome.mutant.name}", flush=True)
        if chosen.results:
            with chosen.results.open("a") as file:
                file.write(json.dumps([outcome.mutant.name, *outcome[1:]]) + "\n")

    with tempfile.TemporaryDirectory(prefix="rlock-mutants-") as directory:
        tree = CopiedTree(Path(directory)) if chosen.in_workers else None
        harness = Harness(
            mutants, report, leave_out=LEFT_OUT, facts=chosen.facts, tree=tree, tests_for=chosen.seconds
        )
        options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:rerunfailures"]
        tests = TESTS_WITH_WORKERS if chosen.in_workers else TESTS[folder]
        pytest.main([*options, *(chosen.tests or tests)], plugins=[harness])
    verdicts = ", ".join(f"{verdict} {number}" for verdict, number in sorted(score.items()))
    print(f"{folder}: {len(mutants)} mutants in {time.monotonic() - begin:.0f} s: {verdicts}", flush=True)
    return score[SURVIVED]


if __name__ == "__main__":
    sys.exit(main())
