"""docs/coming-from.md has a section for each library: its version, its options, what remains different."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import page

TEXT = page("docs/coming-from.md").text

LIBRARIES = (
    "celery-once",
    "celery-singleton",
    "celery-heimdall",
    "Huey's lock_task",
    "CPython's threading",
    "redis-py's Lock",
    "django-redis's cache.lock",
    "python-redis-lock",
    "pottery",
)


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_has_a_section_with_its_version_and_its_options(library):
    section = TEXT.partition(f"## Coming from {library}\n")[2].partition("\n## ")[0]
    assert re.search(r"Compared with [\w.-]+ \d+\.\d+", section)
    assert section.count("| `") >= 3


def test_every_section_says_what_remains_different():
    """celery-once and celery-singleton have one list for both."""
    assert (
        len(re.findall(r"^\*\*What remains different.*, and why\*\*$", TEXT, re.MULTILINE))
        == len(LIBRARIES) - 1
    )


def test_no_key_is_freed_by_hand_without_waking_its_waiters_while_workers_run():
    """The only lines with a delete say that nothing runs, or that it wakes no waiter."""
    for line in TEXT.splitlines():
        if "client.delete" in line:
            assert "all workers and publishers are stopped" in line
