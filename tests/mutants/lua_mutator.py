"""Changes the text of a Lua script in every place where a small mistake could be made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.mutants.mutant import Edit

_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<string>'(?:\\.|[^'\\])*')|(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark>==|~=|<=|>=|\.\.|[-+*/%^#<>=(){}\[\];:,.])"
)
_SWAPS = {
    "==": ["~="],
    "~=": ["=="],
    "<": ["<=", ">="],
    "<=": ["<", ">"],
    ">": [">=", "<="],
    ">=": [">", "<"],
    "and": ["or"],
    "or": ["and"],
    "+": ["-"],
    "-": ["+"],
    "*": ["/"],
    "/": ["*"],
    "max": ["min"],
    "min": ["max"],
    "true": ["false"],
    "false": ["true"],
    "'0'": ["'1'"],
    "'1'": ["'0'"],
    "0": ["1"],
    "1": ["0"],
}
_COMPARISONS = {"==", "~=", "<", "<=", ">", ">="}
_OPEN, _CLOSE = {"(", "[", "{"}, {")", "]", "}"}
#: After one of these, the next line goes on with the same statement.
_GOES_ON = _OPEN | _COMPARISONS | {"and", "or", "not", "..", ",", "=", "+", "-", "*", "/", "return", "in"}
_BEGINS_NO_STATEMENT = {"and", "or", "..", "+", "-", "*", "/"} | _CLOSE
_KEYWORDS = {"if", "then", "else", "elseif", "end", "while", "do", "for", "local", "function", "in", "not"}


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def edits_of(text: str) -> Iterator[Edit]:
    """All changes of a script. Its first lines, which are comments, stay."""
    tokens = [
        Token(str(match.lastgroup), match[0], match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "comment"
    ]
    for place, token in enumerate(tokens):
        yield from _swapped(tokens, place)
        if token.text == "not":
            yield Edit(token.start, tokens[place + 1].start, "")
        if token.text in {"if", "elseif", "while"}:
            yield from _negated(text, tokens, place)
        if token.text == "," and tokens[place + 1].text in {"'PX'", "'NX'"}:
            yield from _without_option(tokens, place)
        if _begins_statement(text, tokens, place):
            yield Edit(token.start, tokens[_last_of_statement(text, tokens, place)].end, "")


def _swapped(tokens: list[Token], place: int) -> Iterator[Edit]:
    token, before = tokens[place], tokens[place - 1] if place else None
    if token.text == "-" and before is not None and before.text in _GOES_ON:
        yield Edit(token.start, token.end, "")  # the sign of a number
        return
    if token.kind == "number" and before is not None and before.text == "[":
        return  # the place in a list: each mistake there is found at once
    if token.kind == "number" and token.text not in _SWAPS:
        yield Edit(token.start, token.end, str(2 * int(token.text) if int(token.text) > 9 else 1))
    if token.text in {"max", "min"} and not (before is not None and before.text == "."):
        return
    for new in _SWAPS.get(token.text, ()):
        yield Edit(token.start, token.end, new)


def _negated(text: str, tokens: list[Token], place: int) -> Iterator[Edit]:
    """`if not (condition) then`. A single comparison or `not` is negated without that."""
    end = next(i for i in range(place, len(tokens)) if tokens[i].text in {"then", "do"})
    condition = tokens[place + 1 : end]
    marks = [token.text for token in condition]
    joins = sum(mark in {"and", "or"} for mark in marks)
    if not joins and (marks[0] == "not" or _COMPARISONS & set(marks)):
        return
    start, stop = condition[0].start, condition[-1].end
    yield Edit(start, stop, f"not ({text[start:stop]})")


def _without_option(tokens: list[Token], place: int) -> Iterator[Edit]:
    """Leave out `, 'PX', time` or `, 'NX'`."""
    if tokens[place + 1].text == "'NX'":
        yield Edit(tokens[place].start, tokens[place + 1].end, "")
        return
    depth = 0
    for token in tokens[place:]:
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth < 0:
            yield Edit(tokens[place].start, token.start, "")
            return


def _begins_statement(text: str, tokens: list[Token], place: int) -> bool:
    """A call, an assignment to what exists already, `return` or `break`, at the begin of a line."""
    token = tokens[place]
    before = tokens[place - 1] if place else None
    if before is not None and "\n" not in text[before.end : token.start]:
        return False
    if before is not None and (before.text in _GOES_ON or _depth_at(tokens, place)):
        return False
    return token.kind == "name" and token.text not in _KEYWORDS | _BEGINS_NO_STATEMENT


def _depth_at(tokens: list[Token], place: int) -> int:
    return sum((token.text in _OPEN) - (token.text in _CLOSE) for token in tokens[:place])


def _last_of_statement(text: str, tokens: list[Token], place: int) -> int:
    depth = 0
    for i in range(place, len(tokens) - 1):
        depth += (tokens[i].text in _OPEN) - (tokens[i].text in _CLOSE)
        following = tokens[i + 1]
        if depth == 0 and following.text in {"end", "else", "elseif"}:
            return i
        is_last_of_line = "\n" in text[tokens[i].end : following.start]
        if depth or not is_last_of_line or tokens[i].text in _GOES_ON - {"return"}:
            continue
        if following.text not in _BEGINS_NO_STATEMENT:
            return i
    return len(tokens) - 1
