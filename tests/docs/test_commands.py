"""The commands on the pages exist."""

from __future__ import annotations

import re

import pytest

from celery_rlock.cli.commands import rlock
from tests.docs.pages import ROOT, pages

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
PAGES = pages()


def commands(page):
    """The lines of the page's shell blocks, and its inline code."""
    lines = [line for block in page.blocks("sh", "bash", "console") for line in block.code.splitlines()]
    return [line.strip().removeprefix("$ ") for line in lines] + re.findall(r"`([^`\n]+)`", page.prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page):
    for command in commands(page):
        named = re.match(r"make ((?:[a-z][\w-]*(?: |$))+)", command)
        if named and "=" not in named.group(1):
            assert set(named.group(1).split()) <= TARGETS, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_celery_rlock_subcommands_exist(page):
    for command in commands(page):
        for name in re.findall(r"celery (?:-A \S+ )?rlock ([a-z][\w-]*)", command):
            assert name in rlock.commands, command


def test_make_help_explains_every_target_that_a_user_needs():
    explained = set(re.findall(r'echo "make ([\w-]+)', MAKEFILE))
    assert explained <= TARGETS
    assert {"demo", "test", "lint", "bench", "docs", "release-check"} <= explained
