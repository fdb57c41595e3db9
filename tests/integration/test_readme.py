"""What the README shows is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from celery_rlock import signals
from celery_rlock.options import NAMES, SETTINGS, Options

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("lua/*.md"), *ROOT.glob("docs/**/*.md")])


def test_its_python_runs(server):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = "\n".join(blocks).replace("redis://localhost:6379/0", server.url)
    done = subprocess.run(
        [sys.executable, "-c", code + "\nprint(charge(7, amount=3)['charged'])"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    token, depth, charged = done.stdout.split()
    assert int(token) > 10**15
    assert (depth, charged) == ("1", "3")
    assert server.client().llen("celery") == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_its_default_are_documented(name):
    rows = README.partition("## Options")[2].splitlines()
    row = next(row for row in rows if row.startswith("| ") and f"`lock_{name}`" in row.split("|")[1])
    default = getattr(Options(), "from_" if name == "from" else name)
    names = re.findall(r"`lock_(\w+)`", row.split("|")[1])
    shown = row.split("|")[2].strip().replace("`", "").split(", ")
    if name != "key":  # its default is described in words
        assert shown[names.index(name)].strip('"') == str(default)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name):
    assert f"| `rlock_{name}` |" in README


def test_every_signal_is_documented():
    for name in vars(signals):
        if name.startswith("lock_"):
            assert f"`{name}`" in README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_commands_it_names_are_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for command in re.findall(r"^make ([\w-]+)|`make ([\w-]+)`", page.read_text(), re.MULTILINE):
            assert set(filter(None, command)) <= targets
