"""README.zh-CN.md says the same as README.md, as far as a program can compare them."""

from __future__ import annotations

import io
import re
import tokenize

from tests.docs.pages import FILES, page

ENGLISH, CHINESE = page("README.md"), page("README.zh-CN.md")


def test_links_are_the_same():
    assert _links(CHINESE, without="README.md") == _links(ENGLISH, without="README.zh-CN.md")


def test_code_is_the_same_except_for_comments():
    assert [_without_comments(block) for block in CHINESE.blocks("python")] == [
        _without_comments(block) for block in ENGLISH.blocks("python")
    ]


def test_commands_and_their_output_are_the_same():
    assert [block.code for block in CHINESE.blocks("sh", "console")] == [
        block.code for block in ENGLISH.blocks("sh", "console")
    ]


def test_names_in_code_style_are_the_same():
    assert _names(CHINESE) == _names(ENGLISH)


def test_versions_and_figures_are_the_same():
    numbers = r"\d+(?:\.\d+)+"
    assert sorted(re.findall(numbers, CHINESE.prose)) == sorted(re.findall(numbers, ENGLISH.prose))


def test_tables_lists_and_headings_have_the_same_length():
    for row in (r"^\|", r"^\d+\. ", r"^## "):
        assert len(re.findall(row, CHINESE.prose, re.MULTILINE)) == len(
            re.findall(row, ENGLISH.prose, re.MULTILINE)
        )


def _links(readme, without):
    return [link for link in readme.links() if link != f"{FILES}{without}"]


def _names(readme):
    """Options, states and commands in code style."""
    return sorted(set(re.findall(r"`([^`\n]+)`", readme.prose)))


def _without_comments(block):
    tokens = tokenize.generate_tokens(io.StringIO(block.code).readline)
    return [token.string for token in tokens if token.type not in {tokenize.COMMENT, tokenize.NL}]
