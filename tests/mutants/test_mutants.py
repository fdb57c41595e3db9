"""The mutators and the harness. `make mutants` runs the mutants themselves; docs/proof.md has the score."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from tests.mutants import lua_mutator, python_mutator
from tests.mutants.catalogue import all_mutants, known_survivors, mutants_of
from tests.mutants.mutant import ROOT, named

LUA = """-- 1 < 2
local function is_late(left)
  return left <= 0 and KEYS[1] ~= ''
end
if is_late(redis.call('PTTL', KEYS[1])) then
  redis.call('SET', KEYS[2], 1, 'PX', 5 * 1000)
end
"""
PYTHON = '''"""A module: 1 < 2."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
class Lease:
    ttl = 30
    def renew(self, now: int = 0) -> bool:
        if self.lost or now < 1:
            logger.warning("lost after %s", 1)
            raise LockLost(f"{now + 1}")
        self.deadline = now + 30
        with self.mutex:
            return not self.lost
'''


def changes(mutator, text):
    """What each mutant writes, by what it replaces."""
    return {(text[edit.start : edit.end], edit.new) for edit in mutator.edits_of(text)}


def test_what_is_changed_in_a_script():
    assert changes(lua_mutator, LUA) == {
        ("return left <= 0 and KEYS[1] ~= ''", ""),
        ("<=", "<"),
        ("<=", ">"),
        ("0", "1"),
        ("and", "or"),
        ("~=", "=="),
        ("is_late(redis.call('PTTL', KEYS[1]))", "not (is_late(redis.call('PTTL', KEYS[1])))"),
        ("redis.call('SET', KEYS[2], 1, 'PX', 5 * 1000)", ""),
        ("1", "0"),
        (", 'PX', 5 * 1000", ""),
        ("5", "1"),
        ("*", "/"),
        ("1000", "2000"),
    }


def test_what_is_changed_in_a_module():
    assert changes(python_mutator, PYTHON) == {
        ("30", "60"),
        ("0", "1"),
        ("self.lost or now < 1", "(not (self.lost or now < 1))"),
        ("self.lost or now < 1", "(self.lost and now < 1)"),
        ("now < 1", "(now <= 1)"),
        ("now < 1", "(now >= 1)"),
        ("1", "0"),
        ('raise LockLost(f"{now + 1}")', "pass"),
        ("self.deadline = now + 30", "pass"),
        ("now + 30", "(now - 30)"),
        ("with self.mutex", "if True"),
        ("return not self.lost", "return None"),
        ("not self.lost", "(self.lost)"),
    }


def test_a_change_outside_of_functions_is_known_as_such():
    outside = [
        PYTHON[edit.start : edit.end] for edit in python_mutator.edits_of(PYTHON) if not edit.in_function
    ]
    assert sorted(outside) == ["0", "30"]


def test_a_name_survives_a_change_of_other_lines():
    mutants = named("f.lua", LUA, lua_mutator.edits_of(LUA))
    moved = named("f.lua", "\n" + LUA, lua_mutator.edits_of("\n" + LUA))
    assert [mutant.name for mutant in moved] == [mutant.name for mutant in mutants]
    assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_every_mutant_of_a_script_loads(client):
    for mutant in mutants_of("lua"):
        assert client.script_load(mutant.source()), mutant.name


def test_mutants_of_modules_compile():
    mutants = [mutant for mutant in all_mutants() if mutant.path.endswith(".py")]
    for mutant in random.Random(1).sample(mutants, 150):
        assert compile(mutant.source(), mutant.path, "exec"), mutant.name


def test_every_listed_survivor_is_still_a_mutant():
    """So the list cannot keep what the code does not have any more."""
    listed = known_survivors()
    assert listed.keys() - {mutant.name for mutant in all_mutants()} == set()
    assert all(listed.values())


#: The file, the line, and the change.
KILLED = [
    ("lua/acquire.lua", "if depth ~= '1' then", "~= -> =="),
    ("lua/acquire.lua", "if holder and not is_mine then", "not -> nothing"),
    ("lua/acquire.lua", "local token = math.max(now, last + 1)", "+ -> -"),
    ("lua/release.lua", "if depth ~= '0' then", "~= -> == | 2"),
    ("lua/release.lua", "redis.call('DEL', KEYS[1])", "redis.call('DEL', KEYS[1]) -> nothing"),
    (
        "lua/release.lua",
        "redis.call('SET', KEYS[2], held[2], 'PX', TOKEN_MEMORY)",
        ", 'PX', TOKEN_MEMORY -> nothing",
    ),
    ("lua/renew.lua", "return 0", "0 -> 1 | 2"),
    (
        "lua/renew.lua",
        "redis.call('PEXPIRE', KEYS[1], ARGV[3])",
        "redis.call('PEXPIRE', KEYS[1], ARGV[3]) -> nothing",
    ),
    ("lua/renew.lua", "elseif ARGV[1] == '' or not held[1] or held[2] ~= ARGV[2] then", "~= -> =="),
    ("celery_rlock/core/lock.py", "if not seconds >= 0:", "seconds >= 0 -> (seconds < 0)"),
]
#: Only a full server refuses the write without it, and the tests that run here have no full server.
SURVIVES = (
    "lua/renew.lua",
    "redis.call('HDEL', KEYS[1], '') -- a full server refuses what grows only as a script's first write",
    "redis.call('HDEL', KEYS[1], '') -> nothing",
)
FAST = [
    *(f"tests/redis/test_script_{verb}.py" for verb in ("acquire", "release", "renew")),
    "tests/redis/test_rlock.py::test_a_timeout_that_cannot_be_is_an_error_at_once",
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What `python -m tests.mutants` finds for these mutants with a few fast tests."""
    directory = tmp_path_factory.mktemp("mutants")
    names, results = directory / "names", directory / "results"
    names.write_text("\n".join(" | ".join(mutant) for mutant in [*KILLED, SURVIVES]))
    command = [sys.executable, "-m", "tests.mutants", "--names", names, "--results", results]
    command += ["--tests", *FAST]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert results.exists(), done.stdout + done.stderr
    return {name: verdict for name, verdict, *_ in map(json.loads, results.read_text().splitlines())}


@pytest.mark.timeout(300)
def test_the_harness_kills_what_the_tests_find(outcomes):
    assert {mutant: outcomes.get(" | ".join(mutant)) for mutant in KILLED} == dict.fromkeys(KILLED, "killed")


@pytest.mark.timeout(300)
def test_the_harness_tells_what_the_tests_do_not_find(outcomes):
    assert outcomes[" | ".join(SURVIVES)] == "survived"
