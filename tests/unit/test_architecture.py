"""Imports point one way, no two things share a name, and every promise has a test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "celery_rlock"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Rooms from the top down. A room may import the rooms below it, never those above.
#: Names in one row are one room: the root modules that a user imports stand beside the room they belong to.
ROOMS = (
    ("__init__", "testing", "pytest_plugin", "django", "asyncio", "mypy_plugin"),
    ("cli",),
    ("doctor",),
    ("worker",),
    ("task",),
    ("publishing", "status"),
    ("telemetry",),
    ("running",),
    ("rlock",),
    ("settings", "options"),
    ("signals",),
    ("aio",),
    ("core",),
    ("server",),
    ("errors", "log"),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

#: The numbered promises of docs/semantics.md.
DUE = set(range(1, 22))


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts)


def room_of(dotted: str) -> str:
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_by(module: Path) -> set[str]:
    """Everything the module imports: at the top, inside functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {name for name in submodules if is_module(name)}
            found |= known
            if len(known) < len(submodules):
                found.add(node.module)
    return found


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_point_down(module):
    here = LEVEL[room_of(name_of(module))]
    ours = {name for name in imported_by(module) if name.split(".")[0] == "celery_rlock"}
    against = {name for name in ours if LEVEL[room_of(name)] < here}
    assert not against


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {
        name_of(module): {name for name in imported_by(module) if name.startswith("celery_rlock.")}
        for module in MODULES
    }
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph


@pytest.mark.parametrize("module", sorted((PACKAGE / "core").glob("*.py")), ids=name_of)
def test_the_core_knows_neither_celery_nor_redis(module):
    assert not {name.split(".")[0] for name in imported_by(module)} & {"celery", "kombu", "billiard", "redis"}


@pytest.mark.parametrize("module", sorted((PACKAGE / "server").glob("*.py")), ids=name_of)
def test_the_server_room_does_not_know_celery(module):
    assert not {name.split(".")[0] for name in imported_by(module)} & {"celery", "kombu", "billiard"}


def test_no_two_modules_share_a_name():
    places = defaultdict(list)
    for module in MODULES:
        if module.stem != "__init__":
            places[module.stem].append(name_of(module))
    for room in {module.parent for module in MODULES}:
        places[room.name].append(name_of(room))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE} == {}


#: The one exception: the module of the `Options` is called as its room.
TWICE = {"options"}


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(name_of(module))
    assert {
        name: found for name, found in places.items() if len(found) > 1 and name not in ONE_PER_FRAMEWORK
    } == {}


#: A user imports one of these: `celery_rlock.LockedTask` or that of Django, `RLock` or that of asyncio.
ONE_PER_FRAMEWORK = {"LockedTask", "RLock"}


@pytest.mark.parametrize("room", sorted({module.parent for module in MODULES}), ids=name_of)
def test_a_room_says_what_belongs_in_it(room):
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


def test_celerys_private_names_are_touched_in_one_place():
    private = re.compile(
        r"(?:from (?:celery|billiard|kombu)[\w.]* import .*\b_[a-z]\w+)|_eta_timer_entry|_request_dict"
    )
    touched = {name_of(module) for module in MODULES if private.search(module.read_text())}
    assert touched <= {"celery_rlock.worker.celery_internals"}


def test_every_promise_has_a_test_that_names_it():
    named = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for line in re.findall(r'"""Semantics ([^"]*?)[:.]', file.read_text()):
            named |= {int(number) for number in re.findall(r"\d+", line)}
    assert named >= DUE
