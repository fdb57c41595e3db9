"""All mutants of the shipped files, and the known survivors with their reasons."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import lua_mutator, python_mutator
from tests.mutants.mutant import ROOT, Mutant, named

FOLDERS = ("lua", "celery_rlock/core", "celery_rlock/running", "celery_rlock/worker")
MUTATORS = {".lua": lua_mutator.edits_of, ".py": python_mutator.edits_of}
_SURVIVORS = Path(__file__).with_name("survivors.txt")


def all_mutants() -> list[Mutant]:
    """Every mutant, in the order of the files and lines."""
    return [mutant for folder in FOLDERS for mutant in mutants_of(folder)]


def mutants_of(folder: str) -> list[Mutant]:
    """The mutants of the files in this folder."""
    found = []
    for file in sorted((ROOT / folder).iterdir()):
        if file.suffix in MUTATORS:
            text = file.read_text()
            found += named(str(file.relative_to(ROOT)), text, MUTATORS[file.suffix](text))
    return found


def known_survivors() -> dict[str, str]:
    """Why each mutant that the tests let pass does no harm, by its name."""
    known: dict[str, str] = {}
    why = ""
    for line in _SURVIVORS.read_text().splitlines():
        if line.startswith("# "):
            why = line.removeprefix("# ")
        elif line in known:
            raise ValueError(f"{_SURVIVORS.name} lists this twice: {line}")
        elif line:
            known[line] = why
    return known
