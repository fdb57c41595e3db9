"""A mutant: one small change of the text of a shipped file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Edit:
    """Write `new` for the characters from `start` to `end` of a source."""

    start: int
    end: int
    new: str
    #: Whether the change is inside a function. Else it has an effect only when the module is imported.
    in_function: bool = True


@dataclass(frozen=True)
class Mutant:
    """An edit of a file, and a name that stays the same while the line itself does."""

    path: str
    line: int
    name: str
    edit: Edit

    @property
    def folder(self) -> str:
        """The folder whose score counts it: `lua`, `core`, `running` or `worker`."""
        return Path(self.path).parent.name

    def source(self) -> str:
        """The text of the file with the change."""
        text = (ROOT / self.path).read_text()
        return text[: self.edit.start] + self.edit.new + text[self.edit.end :]


def named(path: str, text: str, edits: Iterable[Edit]) -> list[Mutant]:
    """The edits as mutants of `path`. Equal changes of equal lines are numbered."""
    mutants, seen = [], Counter[str]()
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end, edit.new)):
        begin = text.rfind("\n", 0, edit.start) + 1
        end = text.find("\n", edit.start)
        line = text[begin : end if end >= 0 else None].strip()
        old = _short(text[edit.start : edit.end])
        name = f"{path} | {line} | {old} -> {_short(edit.new) or 'nothing'}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" | {seen[name]}"
        mutants.append(Mutant(path, text.count("\n", 0, edit.start) + 1, name, edit))
    return mutants


def _short(text: str) -> str:
    """The text in one line; of a long one the beginning and the end."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:40]} … {line[-15:]}"
