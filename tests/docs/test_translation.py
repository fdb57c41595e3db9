"""README.zh-CN.md says what README.md says, as far as a machine can see."""

from __future__ import annotations

import io
import re
import tokenize

from tests.docs.pages import page

ENGLISH, CHINESE = page("README.md"), page("README.zh-CN.md")


def test_links_are_the_same():
    assert [link for link in CHINESE.links() if link != "README.md"] == [
        link for link in ENGLISH.links() if link != "README.zh-CN.md"
    ]


def test_code_is_the_same_but_for_its_comments():
    assert list(map(_without_comments, CHINESE.blocks("python"))) == list(
        map(_without_comments, ENGLISH.blocks("python"))
    )


def test_commands_are_the_same():
    assert [_commands(block) for block in CHINESE.blocks("sh")] == [
        _commands(block) for block in ENGLISH.blocks("sh")
    ]


def test_names_are_the_same():
    assert _names(CHINESE) == _names(ENGLISH)


def test_versions_and_figures_are_the_same():
    numbers = r"\d+(?:\.\d+)+"
    assert sorted(re.findall(numbers, CHINESE.prose)) == sorted(re.findall(numbers, ENGLISH.prose))


def test_tables_and_lists_are_as_long():
    for row in (r"^\|", r"^\d+\. ", r"^## "):
        assert len(re.findall(row, CHINESE.prose, re.MULTILINE)) == len(
            re.findall(row, ENGLISH.prose, re.MULTILINE)
        )


def _names(readme):
    """What stands in code style: options, states, commands."""
    return sorted(set(re.findall(r"`([^`\n]+)`", readme.prose)))


def _commands(block):
    return [line.partition("#")[0].strip() for line in block.code.splitlines()]


def _without_comments(block):
    tokens = tokenize.generate_tokens(io.StringIO(block.code).readline)
    return [token.string for token in tokens if token.type not in {tokenize.COMMENT, tokenize.NL}]
