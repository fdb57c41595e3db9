"""What mypy tells a user about right and wrong code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CONFIG = """
[mypy]
strict = True
plugins = celery_rlock.mypy_plugin
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What mypy found in Celery and in this package, so that it does so once."""
    return tmp_path_factory.mktemp("mypy")


def check(file, folder):
    """What mypy reports about a file, by line."""
    config = folder / "mypy.ini"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", folder / "cache", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert done.stderr == ""
    found = re.findall(rf"{file.name}:(\d+): error: (.*)", done.stdout)
    return {int(line): text for line, text in found}


def test_right_code_is_accepted(cache):
    assert check(HERE / "right.py", cache) == {}


def test_each_mistake_is_reported_where_it_is(cache):
    lines = enumerate((HERE / "wrong.py").read_text().splitlines(), 1)
    expected = {number: line.partition("# error: ")[2] for number, line in lines if "# error: " in line}
    found = check(HERE / "wrong.py", cache)
    assert found.keys() == expected.keys()
    for line, text in expected.items():
        assert text in found[line]
