"""The header of a script is its contract: it names what the body uses."""

from __future__ import annotations

import re

import pytest

from celery_rlock.server.lock_server import DONE_MEMORY_MS, WOKEN_TRUST_MS
from tests.redis.conftest import LUA

SCRIPTS = sorted(LUA.glob("*.lua"))


def split(script):
    lines = script.read_text().splitlines()
    header = [line for line in lines if line.startswith("-- ")]
    return "\n".join(header), "\n".join(line for line in lines if not line.lstrip().startswith("--"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_header_names_the_keys_and_arguments_that_the_body_uses(script):
    header, body = split(script)
    for name in ("KEYS", "ARGV"):
        pattern = rf"{name}\[(\d+)\]"
        assert set(re.findall(rf"^-- {pattern} ", header, re.MULTILINE)) == set(re.findall(pattern, body))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_header_says_what_the_script_is_and_returns(script):
    header, _ = split(script)
    assert header.startswith(f"-- {script.name}: ")
    assert re.search(r"^-- returns ", header, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_touches_declared_keys_only(script):
    _, body = split(script)
    keys = re.findall(r"redis\.call\('(?!TIME|PUBLISH)\w+'(?:, ([^,)]+))?", body)
    assert keys
    assert all(re.fullmatch(r"KEYS\[\d\]", key) for key in keys)


def test_the_readme_lists_every_script():
    listed = re.findall(r"^\| `(\w+\.lua)` \|", (LUA / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [script.name for script in SCRIPTS]


def test_the_scripts_and_the_code_agree_on_how_long_things_are_kept():
    release, passing = (LUA / "release.lua").read_text(), (LUA / "pass.lua").read_text()
    assert f"DONE_MEMORY, TRUST = 60000, {DONE_MEMORY_MS}, {WOKEN_TRUST_MS}\n" in release
    assert f"local TRUST = {WOKEN_TRUST_MS} " in passing
