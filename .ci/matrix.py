"""Test the wheel on the oldest and on the newest Python, Celery and redis-py that it supports.

    python .ci/matrix.py [oldest] [newest]

The oldest versions are the lower bounds in pyproject.toml, on the lowest Python of this machine that they
allow. The newest versions are what pip finds, on the highest Python of this machine. Both environments,
.venv-oldest and .venv-newest, stay for the next time. The tests run in a folder without the source tree, so
they import the wheel. Both run at the same time, because most of these tests wait more than they compute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Cell = tuple[str, list[str]]  # a Python, and the requirements that choose the versions

ROOT = Path(__file__).resolve().parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
#: Patterns. Each must match, so that a renamed file does not silently leave the matrix.
TESTS = [
    "tests/unit/test_*.py",
    "tests/redis/test_*.py",
    "tests/testing/test_*.py",
    "tests/worker/test_busy*.py",
    "tests/worker/test_calls_without_a_message.py",
    "tests/worker/test_canvas.py",
    "tests/worker/test_runs_ended_from_outside.py",
    "tests/faults/server/test_passwords.py",
    "tests/faults/server/test_*rights.py",
    "tests/faults/server/test_*tls*.py",
]
#: This one reads the source tree, which the tests here must not see. `make test` runs it.
LEFT_OUT = "tests/unit/test_architecture.py"
#: What the tests read beside the installed package.
COPIED = ["docs/security.md", "lua", "pyproject.toml", "tests"]
#: Where to look for other Pythons than the one that runs this.
PLACES = [
    (Path.home() / ".pyenv/versions", "*/bin/python3"),
    (Path("/opt"), "*/bin/python3"),
    (Path("/opt/hostedtoolcache/Python"), "*/*/bin/python3"),  # GitHub's runners
    (Path("/usr/local/bin"), "python3.*"),
    (Path("/usr/bin"), "python3.*"),
]
VERSIONS = """
import platform, celery, kombu, redis
print(f"Python {platform.python_version()}, Celery {celery.__version__}, kombu {kombu.__version__}, "
      f"redis-py {redis.__version__}")
"""


def lowest(name: str) -> str:
    """The lowest version of a dependency, or of Python, that the package allows."""
    return re.search(rf'(?:^|"){name}(?:\[\w+\]| = ")?>=([\d.]+)', PROJECT, re.MULTILINE)[1]


def version_of(python: str | Path) -> tuple[int, ...] | None:
    """The version as (3, 11, 7), or None if this is no Python that can make an environment."""
    ask = [python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:3])"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False, cwd="/")
    return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else None


def pythons() -> list[str]:
    """The Pythons of this machine that the package allows, the lowest first."""
    found = {sys.executable}
    for folder, pattern in PLACES:
        found |= {str(path) for path in folder.glob(pattern) if re.fullmatch(r"python3(\.\d+)?", path.name)}
    versions = {python: version_of(python) for python in found}
    least = tuple(map(int, lowest("requires-python").split(".")))
    allowed = [python for python in found if versions[python] and versions[python] >= least]
    return sorted(allowed, key=lambda python: (versions[python], python))


def cells() -> dict[str, Cell]:
    found = pythons()
    if not found:
        sys.exit(f"This machine has no Python {lowest('requires-python')} or newer with venv.")
    oldest = [f"{name}=={lowest(name)}" for name in ("celery", "redis")]
    return {"oldest": (found[0], oldest), "newest": (found[-1], ["celery", "redis"])}


def environment(name: str, python: str, requirements: list[str], wheel: Path) -> Path:
    """Returns the Python of the cell's environment, with the wheel and the tools of its tests."""
    home = ROOT / f".venv-{name}"
    own = home / "bin" / "python"
    if not own.exists() or version_of(own) != version_of(python):
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*install, "pip>=25.1"], check=True)  # it knows dependency groups
    group = ["--group", f"{ROOT / 'pyproject.toml'}:test-core"]
    subprocess.run([*install, *group, f"{wheel}[cli,metrics,testing]", *requirements], check=True)
    # The wheel has the same version each time, so pip would keep an older build of it.
    subprocess.run([*install, "--force-reinstall", "--no-deps", wheel], check=True)
    return own


def tests() -> list[str]:
    """The files that the patterns match."""
    files = {pattern: sorted(ROOT.glob(pattern)) for pattern in TESTS}
    missing = [pattern for pattern, found in files.items() if not found]
    if missing:
        sys.exit(f"These patterns in .ci/matrix.py match no test: {', '.join(missing)}")
    names = [str(path.relative_to(ROOT)) for found in files.values() for path in found]
    return [name for name in names if name != LEFT_OUT]


def copy_tests(folder: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def run(name: str, cell: Cell, wheel: Path) -> bool:
    """Returns whether all tests pass; prints what pytest printed, in one piece."""
    own = environment(name, *cell, wheel)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"rlock-{name}-") as folder:
        copy_tests(Path(folder))
        variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        options = {"cwd": folder, "env": variables, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        versions = subprocess.run([own, "-c", VERSIONS], check=True, text=True, **options).stdout.strip()
        pytest = [own, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
        # Both cells at once may overload the machine.
        pytest += ["--reruns", "2", "--reruns-delay", "5", "-rR"]
        result = subprocess.run([*pytest, *tests()], check=False, text=True, **options)
    passed = result.returncode == 0
    outcome = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s"
    print(f"== {name}: {versions}\n{result.stdout}== {name}: {outcome}", flush=True)
    return passed


def main() -> None:
    wanted = sys.argv[1:] or ["oldest", "newest"]
    unknown = set(wanted) - {"oldest", "newest"}
    if unknown:
        sys.exit(f"There is no cell {', '.join(unknown)}: say oldest, newest or nothing.")
    tests()  # says what is missing before it takes time
    with tempfile.TemporaryDirectory(prefix="rlock-wheel-") as dist:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, ROOT]
        subprocess.run(build, check=True)
        wheel = next(Path(dist).glob("*.whl"))
        with ThreadPoolExecutor() as threads:
            chosen = {name: cell for name, cell in cells().items() if name in wanted}
            results = list(threads.map(lambda name: run(name, chosen[name], wheel), chosen))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
