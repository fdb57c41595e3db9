"""docs/settings.md names every option, setting and signal, with its default; and no other."""

from __future__ import annotations

import pytest

from celery_rlock import signals
from celery_rlock.core.name import DEFAULT_PREFIX
from celery_rlock.core.url import SCHEMES
from celery_rlock.options import NAMES, SETTINGS, Options
from tests.docs.pages import page


def table(first_column):
    """The rows of every table whose first column is called so: what it names, and the other cells."""
    rows, inside = {}, False
    for line in page("docs/settings.md").prose.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        inside = bool(cells) and (inside or cells[0] == first_column)
        if inside and cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[1:]
    return rows


OPTIONS, OF_THE_APP, SIGNALS = table("option"), table("setting"), table("signal")


@pytest.mark.parametrize("name", NAMES)
def test_every_option_and_its_default_are_documented(name):
    shown = OPTIONS[f"lock_{name}"][0].strip("`").strip('"')
    if name != "key":  # its default is described in words
        assert shown == str(getattr(Options(), "from_" if name == "from" else name))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented(name):
    assert f"rlock_{name}" in OF_THE_APP


def test_defaults_of_settings_are_true():
    assert OF_THE_APP["rlock_prefix"][0] == f'`"{DEFAULT_PREFIX}"`'


def test_nothing_is_invented():
    assert set(OPTIONS) == {f"lock_{name}" for name in NAMES}
    assert set(OF_THE_APP) == {f"rlock_{name}" for name in SETTINGS}


def test_every_signal_is_documented():
    assert set(SIGNALS) == {name for name in vars(signals) if name.startswith("lock_")}


@pytest.mark.parametrize("name", SIGNALS)
def test_what_a_signal_brings_is_documented(name):
    for argument in getattr(signals, name).providing_args:
        assert f"`{argument}`" in SIGNALS[name][1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_of_a_url_is_documented(scheme):
    assert f"`{scheme}://" in page("docs/settings.md").prose
