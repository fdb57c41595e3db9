"""A mypy plugin that reports unknown `lock_…` options of a `LockedTask`.

mypy checks the type of each declared option by itself. It does not know that `lock_bussy = 1` in a subclass
is a spelling mistake and not a new attribute; this plugin does. Enable it in mypy's configuration: `plugins =
["celery_rlock.mypy_plugin"]`.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import AssignmentStmt, NameExpr, TypeInfo
from mypy.plugin import ClassDefContext, Plugin

from celery_rlock.options.options import NAMES
from celery_rlock.options.validation import unknown_names

_LOCKED_TASK = "celery_rlock.task.LockedTask"
_KNOWN = [f"lock_{name}" for name in NAMES]


class LockOptionsPlugin(Plugin):
    """Looks at every class whose base is `LockedTask` or derives from it."""

    def get_base_class_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        symbol = self.lookup_fully_qualified(fullname)
        if symbol is None or not isinstance(symbol.node, TypeInfo):
            return None
        return _check if symbol.node.has_base(_LOCKED_TASK) else None


def _check(context: ClassDefContext) -> None:
    for statement in context.cls.defs.body:
        if not isinstance(statement, AssignmentStmt):
            continue
        names = [target.name for target in statement.lvalues if isinstance(target, NameExpr)]
        for problem in unknown_names(names, "lock_", _KNOWN):
            context.api.fail(problem, statement)


def plugin(_version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return LockOptionsPlugin
