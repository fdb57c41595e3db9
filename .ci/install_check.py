"""Install the built package as a newcomer does, and do what the README and the quickstart say.

    python .ci/install_check.py [wheel or sdist ...]

Without arguments it builds the wheel. It installs each file without extras into an empty environment, away
from the source tree. `.ci/smoke.py` checks what was installed. Then, with a wheel, it follows the two pages,
literally, with a real server and real workers. The pages must look like this:

- README.md: the first ```python block is a complete module with a Celery app, and it calls its tasks
  (`.delay`). The check saves the block as a module with the app's name, starts a worker, runs the module, and
  waits until the worker has completed every call.
- docs/quickstart.md: the check follows all ```python, ```sh and ```console blocks, from top to bottom.
  - A ```python block is a file if it says title="proj.py", if it starts with the comment `# proj.py`, or if
    the line before it ends with the name in backticks: `proj.py`. Any other ```python block runs as a script.
  - Every line of a ```sh block is a command. In a ```console block a command starts with "$ ", and the other
    lines are its output.
  - `celery … worker`, `celery … beat` and commands that end with "&" run in the background. The check waits
    for a worker's banner. It leaves out commands that start a Redis server, because it has one.
  - `pip install celery-rlock` installs the file under test.
  - A ```text block right after a script or a command is its output. "…" stands for any text. UUIDs, decimal
    fractions and integers of five or more digits may differ.
  - The word `no-run` after the language leaves a block out.

In both pages redis://localhost:6379 stands for the check's own server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.embedded.processes import Process, Processes  # noqa: E402 - found through sys.path
from examples.embedded.valkey import Valkey  # noqa: E402

SECONDS = 60
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?P<words>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
PYTHON, COMMANDS, OUTPUT = {"python"}, {"sh", "bash", "shell", "console"}, {"text"}
BACKGROUND = re.compile(r"\bcelery\b.*\s(worker|beat)\b|&\s*$")
SERVER = re.compile(r"^(sudo )?(docker|redis-server|valkey-server|brew|apt|systemctl)\b")
VARIES = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+\.\d+|\d{5,}|…")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    words: str
    code: str
    before: str  # the page's text since the block before
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that this block is, or None for a script."""
        title = re.search(r'title="([\w/]+\.py)"', self.words)
        comment = re.match(r"# ?([\w/]+\.py)\s*$", self.code.partition("\n")[0])
        above = re.search(r"`([\w/]+\.py)`:?\s*$", self.before)
        found = title or comment or above
        return found and found[1]


@dataclass(frozen=True)
class Environment:
    """An environment with the package under test."""

    home: Path
    package: Path

    @classmethod
    def create(cls, home: Path, package: Path) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        return cls(home, package)

    def variables(self) -> dict[str, str]:
        """Nothing of the source tree and nothing of the environment that this script runs in."""
        foreign = re.compile(r"PYTHON|CELERY|VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
        path = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "2"}

    def in_place(self, command: str) -> str:
        """The command with the file under test in place of the package's name."""
        if not re.match(r"(python3? -m )?pip install\b", command):
            return command
        return re.sub(r"\bcelery-rlock\b", str(self.package), command)


class Page:
    """A page that is followed from top to bottom, in a folder of its own."""

    def __init__(self, path: Path, environment: Environment, processes: Processes, server: str) -> None:
        self._path, self._environment, self._processes = path, environment, processes
        self._folder = processes.directory
        text = path.read_text(encoding="utf-8").replace("redis://localhost:6379", server.removesuffix("/0"))
        self.blocks = list(_blocks(text))
        self.compared = self.scripts = 0
        self.workers: list[Process] = []

    def follow(self) -> None:
        """Do what every block says; SystemExit says which block did not work."""
        printed: str | Process | None = None
        for block in self.blocks:
            if "no-run" in block.words:
                printed = None
            elif block.language in PYTHON:
                printed = self._python(block)
            elif block.language in COMMANDS:
                printed = self._commands(block)
            elif block.language in OUTPUT and printed is not None:
                self._compare(block, printed, block.code)
                printed = None
        if not (self.workers and self.scripts and self.compared):
            self._fail(
                self.blocks[-1],
                f"followed {len(self.workers)} workers, {self.scripts} scripts and {self.compared} outputs: "
                "a page that misses one of them is not a quickstart",
            )

    def first_example(self) -> None:
        """Run the page's first Python block under a worker; every call that it makes must succeed."""
        block = next(block for block in self.blocks if block.language in PYTHON)
        calls = len(re.findall(r"^[^#\n]*\.(?:delay|apply_async)\(", block.code, re.MULTILINE))
        app = re.search(r'Celery\(\s*"(\w+)"', block.code)
        if not calls or not app:
            self._fail(block, "the first example has no Celery app, or calls no task")
        self._write(f"{app[1]}.py", block.code)
        worker = self._start(block, f"celery -A {app[1]} worker --loglevel INFO")
        self._run(block, f"python {app[1]}.py")
        self._await(block, worker, lambda log: len(re.findall(r" succeeded in ", log)) >= calls)
        if " raised " in worker.log:
            self._fail(block, f"a task failed:\n{worker.log}")
        self.scripts += 1

    def _python(self, block: Block) -> str | None:
        if block.file:
            self._write(block.file, block.code)
            return None
        self.scripts += 1
        name = f"block_{block.line}.py"
        self._write(name, block.code)
        return self._run(block, f"python {name}")

    def _commands(self, block: Block) -> str | Process | None:
        printed: str | Process | None = None
        for command, shown in _commands(block):
            if SERVER.match(command):
                printed = None
            elif BACKGROUND.search(command):
                printed = self._start(block, command.rstrip("& "))
            else:
                self.scripts += command.startswith("python") and "pip" not in command
                printed = self._run(block, self._environment.in_place(command))
            if shown and printed is not None:
                self._compare(block, printed, shown)
                printed = None
        return printed

    def _write(self, name: str, code: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")

    def _run(self, block: Block, command: str) -> str:
        result = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            env=self._environment.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=5 * SECONDS,
            check=False,
        )
        if result.returncode:
            self._fail(block, f"`{command}` exits with {result.returncode}:\n{result.stdout}")
        return result.stdout

    def _start(self, block: Block, command: str) -> Process:
        process = self._processes.start("background", ("/bin/sh", "-c", f"exec {command}"))
        if " worker" in command:
            self._await(block, process, lambda log: "[queues]" in log)  # without INFO it logs no "ready"
            self.workers.append(process)
        return process

    def _await(self, block: Block, process: Process, seen: object) -> None:
        try:
            process.wait_until(lambda: seen(process.log), timeout=SECONDS)  # type: ignore[operator]
        except RuntimeError as error:
            self._fail(block, str(error))

    def _compare(self, block: Block, printed: str | Process, shown: str) -> None:
        """A command prints what is shown, and nothing else. A background process logs each shown line."""
        self.compared += 1
        if isinstance(printed, Process):
            for line in filter(None, map(str.strip, shown.splitlines())):
                self._await(block, printed, lambda log, line=line: re.search(_pattern(line), log))
        elif not re.fullmatch(_pattern(_tidy(shown)), _tidy(printed)):
            self._fail(block, f"the page shows\n{_tidy(shown)}\n\nand we saw\n{_tidy(printed)}")

    def _fail(self, block: Block, problem: str) -> None:
        sys.exit(f"{self._path.relative_to(ROOT)}, the block at line {block.line}: {problem}")


#: The pages, and how each is followed.
PAGES = (("README.md", Page.first_example), ("docs/quickstart.md", Page.follow))


def _blocks(text: str) -> list[Block]:
    blocks, end = [], 0
    for found in FENCE.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start()) + 1
        blocks.append(Block(found["language"], found["words"], code, text[end : found.start()], line))
        end = found.end()
    return blocks


def _commands(block: Block) -> list[tuple[str, str]]:
    """Each command of the block, with what the block shows of its output."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language != "console":
        return [(line.strip(), "") for line in lines if line.strip() and not line.startswith("#")]
    commands: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith("$ "):
            commands.append((line[2:].strip(), ""))
        elif commands:
            commands[-1] = (commands[-1][0], f"{commands[-1][1]}{line}\n")
    return [(command, shown.strip() and shown) for command, shown in commands]


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _pattern(shown: str) -> str:
    """A regular expression for the shown text, in which what varies from run to run may vary."""
    pattern, end = "", 0
    for found in VARIES.finditer(shown):
        varying = {"…": r".*"}.get(found[0]) or (r"[0-9a-f-]{36}" if "-" in found[0] else r"[\d.]+")
        pattern += _words(shown[end : found.start()]) + varying
        end = found.end()
    return pattern + _words(shown[end:])


def _words(text: str) -> str:
    """The words as they are; columns of a table move with what is in them."""
    return re.sub(r"(?:\\ ){2,}", r" +", re.escape(text))


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def check(package: Path, folder: Path) -> None:
    """Raises SystemExit, and says what is wrong, unless the package installs and works.

    An sdist installs the same files as the wheel, and the smoke test checks them. The pages are for wheels.
    """
    started = time.monotonic()
    environment = Environment.create(folder, package)
    variables = environment.variables()
    with Processes(variables) as processes:
        server = Valkey(processes).url
        install = f"pip install {package}"
        smoke = f"python {ROOT / '.ci' / 'smoke.py'} {server} {ROOT}"
        for command in (install, smoke):
            if subprocess.run(["/bin/sh", "-c", command], env=variables, cwd=folder, check=False).returncode:
                sys.exit(f"`{command}` failed in an empty environment")
        for name, follow in PAGES if package.suffix == ".whl" else ():
            with Processes(variables) as own:
                page = Page(ROOT / name, environment, own, server)
                follow(page)
                print(f"{name}: {page.scripts} scripts, {page.compared} outputs as shown", flush=True)
    print(f"{package.name} installs and works ({time.monotonic() - started:.0f} s)")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rlock-install-") as folder:
        packages = [Path(name).resolve() for name in sys.argv[1:]] or [build(Path(folder, "dist"))]
        for number, package in enumerate(packages):
            check(package, Path(folder, f"environment-{number}"))


if __name__ == "__main__":
    main()
