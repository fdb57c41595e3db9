"""Is everything there in an installed celery-rlock, and does it lock?

    python smoke.py <URL of a server> <repository>

Run it with the Python of an environment that has celery-rlock and nothing else, from outside the repository.
"""

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from celery import Celery

import celery_rlock
from celery_rlock import RLock
from celery_rlock.server import script

url, repository = sys.argv[1], Path(sys.argv[2])
home = Path(celery_rlock.__file__).parent
wanted = re.search(r'^version = "(.+)"', (repository / "pyproject.toml").read_text(), re.MULTILINE)[1]

assert "site-packages" in home.parts, f"{home} is not installed"
assert {version("celery-rlock"), celery_rlock.__version__} == {wanted}, "not the version of pyproject.toml"
assert (home / "py.typed").exists(), "py.typed is missing"
assert script._folder() == home / "lua", "the package loads other scripts than those it was built with"
for source in (repository / "lua").glob("*.lua"):
    packaged = home / "lua" / source.name
    assert packaged.read_bytes() == source.read_bytes(), f"{source.name} is missing or differs"

pages = {file.name for file in (repository / "celery_rlock/cli/static").iterdir()}
assert {file.name for file in (home / "cli/static").iterdir()} == pages != set(), "the page is incomplete"

for extra in ("rich", "prometheus_client"):
    assert importlib.util.find_spec(extra) is None, f"{extra} was installed, and no extra was asked for"
command = [str(Path(sys.executable).with_name("celery")), "rlock", "--help"]
shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
assert "Usage: celery rlock" in shown, shown

Celery("smoke", set_as_current=True).conf.rlock_url = url
with RLock("smoke") as lock, RLock("smoke") as again:
    assert lock.token == again.token
    assert again.depth == 2
assert not RLock("smoke").locked()
print(f"celery-rlock {wanted} is complete, and it locks")
