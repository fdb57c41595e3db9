"""A pytest plugin that collects the tests once, and runs some in a forked process for each mutant."""

from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import coverage
import psutil
import pytest
from _pytest.runner import runtestprotocol
from redis.exceptions import RedisError

from tests.mutants.copied_tree import CopiedTree
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.swap import CannotSwap, swap_in
from tests.support import processes
from tests.support.processes import prepare_child
from tests.support.servers import Server

_LONGEST_WAIT = 3.0

KILLED, HUNG, SURVIVED, NOT_RUN = "killed", "hung", "survived", "not run"


class Outcome(NamedTuple):
    """What became of a mutant; `test` is the one that killed it."""

    mutant: Mutant
    verdict: str
    test: str
    why: str
    seconds: float


@dataclass
class Facts:
    """What a run without a mutant shows about the tests."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    #: The tests that use a script, or a line of a module.
    users: dict[str, list[str]] = field(default_factory=dict)

    def tests_of(self, mutant: Mutant) -> list[str]:
        if mutant.path.endswith(".lua"):
            return self.users.get(mutant.path, [])
        # A line inside a statement of several lines has no record of its own.
        for line in range(mutant.line, mutant.line - 4, -1):
            if found := self.users.get(f"{mutant.path}:{line}"):
                return found
        return []


class Harness:
    """Runs `mutants` against the tests that pytest has collected, and calls `report` after each.

    With a `tree`, the mutants are in the workers that the tests start, and all tests are used. Else they
    are in the process that runs the tests, and those tests are used that ran the line before.
    """

    def __init__(
        self,
        mutants: Iterable[Mutant],
        report: Callable[[Outcome], None],
        *,
        leave_out: tuple[str, ...] = (),
        facts: Path | None = None,
        tree: CopiedTree | None = None,
        longest: float = 60.0,
        tests_for: float = 30.0,
    ) -> None:
        self._mutants, self._report, self._leave_out = list(mutants), report, leave_out
        self._tree = tree
        self._facts_file, self._longest, self._tests_for = facts, longest, tests_for
        self._kills: Counter[str] = Counter()
        self._items: dict[str, pytest.Item] = {}
        self._facts = Facts()
        self._servers: list[Server] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(text in item.nodeid for text in self._leave_out)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._start_servers()
        self._facts = self._known_facts() or self._learn()
        processes.LONGEST_WAIT = _LONGEST_WAIT
        for mutant in self._mutants:
            self._report(self._judged(mutant))
        return True

    def _judged(self, mutant: Mutant) -> Outcome:
        """A test that fails without the mutant too, for example on a loaded machine, kills none."""
        unsure: set[str] = set()
        while True:
            outcome = self._try(mutant, unsure)
            self._restore_servers()
            if outcome.verdict != KILLED or self._passes(outcome.test):
                return outcome
            unsure.add(outcome.test)

    def _start_servers(self) -> None:
        """A test in this process starts the servers that all forked processes then share."""
        for item in self._session.items:
            if "servers" in getattr(item, "fixturenames", ()):
                self._run(item, None)
                self._servers = [found for found in gc.get_objects() if isinstance(found, Server)]
                return

    def _restore_servers(self) -> None:
        """A mutant without an end keeps its server busy, also after its test has failed."""
        for server in self._servers:
            try:
                server.client().flushall()
            except RedisError:
                server.kill()
                server.started()

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> str:
        """Why the test fails; empty if it does not. The fixtures of the session stay."""
        after = following or SimpleNamespace(listchain=lambda: [self._session])
        reports = runtestprotocol(item, log=False, nextitem=after)  # type: ignore[arg-type]
        failed = [report.longreprtext for report in reports if report.failed]
        return (failed[0].splitlines() or ["?"])[-1] + " " + _message(failed[0]) if failed else ""

    def _known_facts(self) -> Facts | None:
        if self._facts_file is None or not self._facts_file.exists():
            return None
        return Facts(**json.loads(self._facts_file.read_text()))

    def _learn(self) -> Facts:
        """Run all tests once, and note how long each takes and what it uses."""

        def learn() -> str:
            facts, users = Facts(), defaultdict(list)
            lines = coverage.Coverage(data_file=None, source=[str(ROOT / "celery_rlock")])
            scripts: set[str] = set()
            _note_reads(scripts)
            if self._tree is not None:
                self._tree.use()
            lines.start()
            for nodeid, item in self._items.items():
                lines.switch_context(nodeid)
                scripts.clear()
                begin = time.monotonic()
                if self._run(item, None):
                    facts.failed.append(nodeid)
                    continue
                facts.seconds[nodeid] = time.monotonic() - begin
                for script in scripts:
                    users[script].append(nodeid)
            lines.stop()
            data = lines.get_data()
            for file in data.measured_files():
                path = str(Path(file).relative_to(ROOT))
                for line, tests in data.contexts_by_lineno(file).items():
                    users[f"{path}:{line}"] = [test for test in tests if test in facts.seconds]
            facts.users = users
            return json.dumps(vars(facts))

        _, text = _in_fork(learn, 3600.0)
        if self._facts_file is not None and text:
            self._facts_file.write_text(text)
        return Facts(**json.loads(text))

    def _try(self, mutant: Mutant, unsure: set[str]) -> Outcome:
        tests = self._facts.seconds if self._tree else self._facts.tests_of(mutant)
        tests = self._chosen((test for test in tests if test not in unsure), Path(mutant.path).stem)
        if not tests:
            return Outcome(mutant, NOT_RUN, "", "", 0.0)
        longest = self._longest + 5 * sum(self._facts.seconds[test] for test in tests)
        begin = time.monotonic()
        with self._tree.holding(mutant) if self._tree else nullcontext():
            has_ended, answer = _in_fork(lambda: self._first_failure(mutant, tests), longest)
        test, _, why = answer.partition("\n")
        verdict = SURVIVED if not test else NOT_RUN if test == NOT_RUN else KILLED
        self._kills[test] += verdict == KILLED
        return Outcome(mutant, verdict if has_ended else HUNG, test, why, time.monotonic() - begin)

    def _passes(self, test: str) -> bool:
        """Whether the test passes without the mutant: on a loaded machine it may have failed by itself."""
        item = self._items.get(test)  # None: the process of the mutant ended in the middle of a test
        return item is None or _in_fork(lambda: self._run(item, None), self._longest) == (True, "")

    def _first_failure(self, mutant: Mutant, tests: list[str]) -> str:
        """The first test that the mutant fails, and why; empty if it passes all of them."""
        try:
            if self._tree is None:
                swap_in(mutant)
            else:
                self._tree.use()
        except CannotSwap:
            return NOT_RUN
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            if why := self._run(self._items[test], self._items[following] if following else None):
                return f"{test}\n{why}"
        return ""

    def _chosen(self, tests: Iterable[str], stem: str) -> list[str]:
        """The tests of this file, those that killed most, then the shortest, as long as there is time."""
        known = [test for test in tests if test in self._items and test in self._facts.seconds]
        known.sort(
            key=lambda test: (f"_{stem}.py" not in test, -self._kills[test], self._facts.seconds[test])
        )
        chosen, total = [], 0.0
        for test in known:
            total += self._facts.seconds[test]
            if total > self._tests_for and chosen:
                break
            chosen.append(test)
        return chosen


def _message(failure: str) -> str:
    """The first line of the error."""
    return next((line[1:].strip() for line in failure.splitlines() if line.startswith("E ")), "")


def _note_reads(scripts: set[str]) -> None:
    """Note which scripts a test reads or runs."""
    read_text = Path.read_text

    def read(self: Path, *args: Any, **kwargs: Any) -> str:
        if self.suffix == ".lua" and self.parent == ROOT / "lua":
            scripts.add(str(self.relative_to(ROOT)))
        return read_text(self, *args, **kwargs)

    Path.read_text = read  # type: ignore[method-assign]


def _in_fork(do: Callable[[], str], longest: float) -> tuple[bool, str]:
    """Whether a forked process ends within `longest` seconds, and what `do` returns there."""
    die_with_parent = prepare_child()
    with tempfile.TemporaryDirectory(prefix="rlock-mutant-") as directory:
        answer = Path(directory) / "answer"
        pid = os.fork()
        if pid == 0:
            _run_in_fork(do, answer, die_with_parent)
        end = time.monotonic() + longest
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                _kill_children_of(pid)
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return False, ""
            time.sleep(0.01)
        return True, answer.read_text() if answer.exists() else "the process ended"


def _run_in_fork(do: Callable[[], str], answer: Path, die_with_parent: Callable[[], None]) -> NoReturn:
    """Nothing here may return, because the process would go on as a second parent."""
    try:
        os.setpgid(0, 0)
        die_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        text = do()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    answer.write_text(text)
    _kill_children_of(os.getpid())
    os._exit(0)


def _kill_children_of(pid: int) -> None:
    """Also servers that a fixture of the session has started there: no fixture ends them."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
