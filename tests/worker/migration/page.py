"""docs/migration.md: its tables, and what it says of the changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "migration.md").read_text()


class Row(NamedTuple):
    section: str
    theirs: str
    ours: str


def rows():
    found = []
    for section in ("celery-once", "celery-singleton"):
        text = PAGE.partition(f"## Coming from {section}\n")[2].partition("\n## ")[0]
        lines = [line for line in text.splitlines() if line.startswith("| `")]
        for theirs, ours, _ in (line.strip("| ").split(" | ") for line in lines):
            found.append(Row(section, theirs.replace("`", ""), ours.strip("`")))
    return found


def changes():
    return re.findall(r"^- (.*)$", PAGE.partition("## What changes for you")[2], re.MULTILINE)
