"""Changes the text of a Python module in every place where a small mistake could be made.

Log lines, error texts, annotations and docstrings stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.mutants.mutant import Edit

_COMPARISONS: dict[type[ast.cmpop], list[ast.cmpop]] = {
    ast.Eq: [ast.NotEq()],
    ast.NotEq: [ast.Eq()],
    ast.Lt: [ast.LtE(), ast.GtE()],
    ast.LtE: [ast.Lt(), ast.Gt()],
    ast.Gt: [ast.GtE(), ast.LtE()],
    ast.GtE: [ast.Gt(), ast.Lt()],
    ast.Is: [ast.IsNot()],
    ast.IsNot: [ast.Is()],
    ast.In: [ast.NotIn()],
    ast.NotIn: [ast.In()],
}
_ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.BitOr: ast.BitAnd(),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def edits_of(text: str) -> Iterator[Edit]:
    """All changes of a module."""
    yield from _Mutator(text).edits()


class _Mutator:
    def __init__(self, text: str) -> None:
        self._text, self._tree = text, ast.parse(text)
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def edits(self) -> Iterator[Edit]:
        yield from self._visit(self._tree, in_function=False)

    def _visit(self, node: ast.AST, *, in_function: bool) -> Iterator[Edit]:
        if _is_left_alone(node):
            return
        if isinstance(node, ast.expr):
            yield from self._expression(node, in_function=in_function)
        if isinstance(node, ast.stmt):
            yield from self._statement(node, in_function=in_function)
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns"} or (field == "test" and _is_for_types(node)):
                continue
            is_body = in_function or (isinstance(node, _FUNCTIONS) and field == "body")
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._visit(child, in_function=is_body)

    def _expression(self, node: ast.expr, *, in_function: bool) -> Iterator[Edit]:
        for new in _changed(node):
            yield self._edit(node, f"({ast.unparse(new)})", in_function=in_function)
        if isinstance(node, ast.Constant):
            for text in _other_constants(node.value):
                yield self._edit(node, text, in_function=in_function)
        if isinstance(node, ast.IfExp):
            yield from self._negated(node.test, in_function=in_function)

    def _statement(self, node: ast.stmt, *, in_function: bool) -> Iterator[Edit]:
        if isinstance(node, ast.If | ast.While) and not _is_for_types(node):
            yield from self._negated(node.test, in_function=in_function)
        if _can_be_dropped(node):
            yield self._edit(node, "pass", in_function=in_function)
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._edit(node, "return None", in_function=in_function)
        if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
            start = self._place(node.lineno, node.col_offset)
            yield Edit(start, self._end(node.items[-1].context_expr), "if True", in_function)
        for decorator in getattr(node, "decorator_list", ()):
            start = self._place(decorator.lineno, decorator.col_offset) - 1
            if _is_droppable_decorator(decorator):
                yield Edit(start, self._end(decorator), "", in_function)

    def _negated(self, test: ast.expr, *, in_function: bool) -> Iterator[Edit]:
        """A comparison or a `not` is negated in itself, and so is a constant."""
        is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not is_not and not isinstance(test, ast.Compare | ast.Constant):
            yield self._edit(test, f"(not ({ast.unparse(test)}))", in_function=in_function)

    def _edit(self, node: ast.expr | ast.stmt, new: str, *, in_function: bool) -> Edit:
        return Edit(self._place(node.lineno, node.col_offset), self._end(node), new, in_function)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.end_lineno or 0, node.end_col_offset or 0)

    def _place(self, line: int, column: int) -> int:
        """The AST counts bytes of a line, an edit characters of the text."""
        begin = self._lines[line - 1]
        return begin + len(self._text[begin : self._lines[line]].encode()[:column].decode())


def _is_left_alone(node: ast.AST) -> bool:
    """Logging, `raise` with its text (dropped as a whole), docstrings, imports and f-strings."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("logger.")


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _can_be_dropped(node: ast.stmt) -> bool:
    """Not the assignment of a local variable: without it, the function would fail with a NameError."""
    if isinstance(node, ast.Expr | ast.Raise | ast.Continue | ast.Break | ast.Delete):
        return not isinstance(getattr(node, "value", None), ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.AugAssign):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _is_droppable_decorator(decorator: ast.expr) -> bool:
    """Without these the code fails at once, or not at all."""
    return ast.unparse(decorator) not in {"property", "contextmanager"} and "setter" not in ast.unparse(
        decorator
    )


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            yield ast.Compare(node.left, [other], node.comparators)
    elif isinstance(node, ast.Compare):
        for i, mark in enumerate(node.ops):
            other = _COMPARISONS[type(mark)][0]
            yield ast.Compare(node.left, [*node.ops[:i], other, *node.ops[i + 1 :]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)], node.right)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"min", "max"}:
        other_name = "max" if ast.unparse(node.func) == "min" else "min"
        yield ast.Call(ast.Name(other_name), node.args, node.keywords)


def _other_constants(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int | float):
        return ["1"] if value == 0 else ["0"] if value == 1 else [repr(value * 2)]
    return []
