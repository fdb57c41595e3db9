"""A Lua script, as it lies in `lua/`, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, RedisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    _Call = tuple[Sequence[str], Sequence[object]]


@dataclass(frozen=True)
class Script:
    source: str
    sha: str

    @classmethod
    def load(cls, verb: str) -> Script:
        source = (_folder() / f"{verb}.lua").read_text(encoding="utf-8")
        return cls(source, sha1(source.encode(), usedforsecurity=False).hexdigest())

    def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[object]) -> Any:
        try:
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.execute_command("EVAL", self.source, len(keys), *keys, *args)

    def run_all(self, client: redis.Redis, calls: Sequence[_Call]) -> list[Any]:
        """Run it for each of these keys and arguments, in one round trip: an answer or an error for each."""
        answers = _pipelined(client, "EVALSHA", self.sha, calls)
        missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            again = _pipelined(client, "EVAL", self.source, [calls[i] for i in missing])
            for i, answer in zip(missing, again, strict=True):
                answers[i] = answer
        return answers


def _pipelined(client: redis.Redis, command: str, script: str, calls: Sequence[_Call]) -> list[Any]:
    try:
        with client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                pipe.execute_command(command, script, len(keys), *keys, *args)
            return pipe.execute(raise_on_error=False)
    except RedisError as error:
        return [error] * len(calls)


@cache
def _folder() -> Path:
    """The scripts lie inside an installed package, and at the top of a source tree."""
    package = Path(__file__).parents[1]
    packaged = package / "lua"
    return packaged if packaged.is_dir() else package.parent / "lua"
