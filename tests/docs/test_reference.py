"""docs/settings.md lists every option, setting and signal with its default. No page names any other."""

from __future__ import annotations

import re

import pytest

from celery_rlock import LockedTask, LockStatus, RLock, TaskLock, pytest_plugin, signals
from celery_rlock.asyncio import RLock as AsyncRLock
from celery_rlock.options.headers import ALL_HEADERS
from celery_rlock.options.options import NAMES, SETTINGS, Options
from celery_rlock.server.redis_keys import DEFAULT_PREFIX
from celery_rlock.server.url import SCHEMES
from tests.docs.pages import page, pages


def table(first_column):
    """The rows of every table with this first column: the name in it, and the other cells."""
    rows, inside = {}, False
    for line in page("docs/settings.md").prose.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        inside = bool(cells) and (inside or cells[0] == first_column)
        if inside and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[1:]
    return rows


OPTIONS, OF_THE_APP, SIGNALS = table("option"), table("setting"), table("signal")

REAL_SIGNALS = {name for name in vars(signals) if name.startswith("lock_")}
KNOWN = {
    *REAL_SIGNALS,
    *(f"lock_{name}" for name in NAMES),
    *(f"rlock_{name}" for name in (*NAMES, *SETTINGS)),
    *("rlock_release", "rlock_end", "rlock_copy"),  # control commands, the old name of a header
    *ALL_HEADERS,
    *("lock_expiry", "lock_task"),  # celery-singleton's, Huey's
    *(name for name in vars(LockedTask) if name.startswith("lock_")),
    *(name for name in vars(pytest_plugin) if name.startswith("rlock_")),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_its_default_are_documented(name):
    shown = OPTIONS[f"lock_{name}"][0].strip("`").strip('"')
    if name != "key":  # its default is described in words
        assert shown == str(getattr(Options(), "from_" if name == "from" else name))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name):
    assert f"rlock_{name}" in OF_THE_APP


def test_the_default_of_the_prefix_is_right():
    assert OF_THE_APP["rlock_prefix"][0] == f'`"{DEFAULT_PREFIX}"`'


def test_only_real_options_and_settings_are_listed():
    assert set(OPTIONS) == {f"lock_{name}" for name in NAMES}
    assert set(OF_THE_APP) == {f"rlock_{name}" for name in SETTINGS}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_names_only_real_options_settings_and_signals(page):
    assert set(re.findall(r"(?<![\w.{/:-])r?lock_[a-z_]+\b(?!\()", page.text)) <= KNOWN


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_used_or_explained_outside_of_the_reference_too(name):
    others = [page for page in pages() if page.name.startswith("docs/") and page.name != "docs/settings.md"]
    assert any(f"lock_{name}" in page.text for page in others)


def test_every_signal_is_documented():
    assert set(SIGNALS) == REAL_SIGNALS


@pytest.mark.parametrize("name", SIGNALS)
def test_the_arguments_of_a_signal_are_documented(name):
    for argument in getattr(signals, name).providing_args:
        assert f"`{argument}`" in SIGNALS[name][1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_url_scheme_is_documented(scheme):
    assert f"`{scheme}://" in page("docs/settings.md").prose


@pytest.mark.parametrize(
    ("name", "documented"),
    [
        ("celery_rlock.TaskLock", TaskLock),
        ("celery_rlock.LockStatus", LockStatus),
        ("celery_rlock.RLock", RLock),
        ("celery_rlock.asyncio.RLock", AsyncRLock),
    ],
)
def test_the_api_lists_every_member_that_has_a_docstring(name, documented):
    section = page("docs/reference.md").text.partition(f"::: {name}\n")[2].partition(":::")[0]
    listed = re.search(r"members: \[(.*)\]", section)[1].split(", ")
    members = {member: getattr(documented, member) for member in dir(documented) if member[0] != "_"}
    assert set(listed) == {member for member, found in members.items() if found.__doc__}
