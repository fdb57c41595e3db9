"""The Markdown pages of this repository: their code, headings and links."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: Where the site, the repository's files and its pictures are published. The README uses these addresses,
#: because PyPI shows the README without the other files.
SITE = "https://celery-rlock.github.io/celery-rlock/"
FILES = "https://github.com/celery-rlock/celery-rlock/blob/main/"
PICTURES = "https://raw.githubusercontent.com/celery-rlock/celery-rlock/main/"

HIDDEN = re.compile(r"(^|/)(\.|site/|node_modules/)")

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: *\{[^}]*\})?$", re.MULTILINE)
LINK = re.compile(r"(?<!\\)\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
ATTRIBUTE = re.compile(r"(?:src|srcset|href)=\"([^\"]+)\"")
INLINE_CODE = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language ("python", "sh", …), the words after the language, and the code."""

    language: str
    words: str
    code: str
    before: str  # the end of the text above the block

    @property
    def title(self) -> str | None:
        """The name of the file that the block shows, as in `title="proj.py"`; None for a script."""
        found = re.search(r'title="([^"]+)"', self.words)
        return found and found.group(1)

    @property
    def runs(self) -> bool:
        """False for a block that says `no-run`."""
        return "no-run" not in self.words.split()


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without code and comments."""
        return COMMENT.sub("", FENCE.sub("", self.text))

    def blocks(self, *languages: str) -> list[Block]:
        return [block for block in map(self._block, FENCE.finditer(self.text)) if block.language in languages]

    def _block(self, found: re.Match[str]) -> Block:
        language, _, words = found["info"].strip().partition(" ")
        indent = len(found["indent"])
        code = "".join(line[indent:] or "\n" for line in found["body"].splitlines(keepends=True))
        return Block(language, words, code, self.text[: found.start()].rstrip()[-300:])

    def links(self) -> list[str]:
        prose = INLINE_CODE.sub("`code`", self.prose)
        return LINK.findall(prose) + ATTRIBUTE.findall(prose)

    def anchors(self) -> set[str]:
        """What may follow # in a link: the site's anchors for docs/, GitHub's anchors for other pages."""
        slug = _slug_of_the_site if DOCS in self.path.parents else _slug_of_github
        return {slug(_plain(heading)) for heading in HEADING.findall(self.prose)}


def pages() -> list[Page]:
    """Every page once, also if symbolic links lead to it."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("lua/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    real = {path.resolve() for path in found if not HIDDEN.search(path.relative_to(ROOT).as_posix())}
    return [Page(path) for path in sorted(real)]


def page(name: str) -> Page:
    return Page(ROOT / name)


def local_path(link: str) -> Path | None:
    """The file of this repository that is published at an absolute address; None for a foreign address."""
    address = link.partition("#")[0]
    if address.startswith(SITE):
        return DOCS / re.sub(r"\.html$", ".md", address.removeprefix(SITE) or "index.html")
    for prefix in (FILES, PICTURES):
        if address.startswith(prefix):
            return ROOT / address.removeprefix(prefix)
    return None


def _plain(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")


def _slug_of_the_site(heading: str) -> str:
    ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def _slug_of_github(heading: str) -> str:
    return re.sub(r"[^\w\s-]", "", heading.strip().lower()).replace(" ", "-")
