"""Defects that the scripts once had, or could have. The explorer must find each of them."""

from __future__ import annotations

from typing import NamedTuple

from tests.interleavings.virtual_server import shipped_sources


class Mutation(NamedTuple):
    """Take out a fix: in the script of `verb`, write `new` for `old`."""

    name: str
    scenario: str
    verb: str
    old: str
    new: str
    faults: int = 1
    delays: int = 0

    def sources(self) -> dict[str, str]:
        """All scripts, with the defect in one of them."""
        sources = shipped_sources()
        text = sources[self.verb]
        if text.count(self.old) < 1:
            raise ValueError(
                f"lua/{self.verb}.lua has changed, so this mutation needs another text: {self.name}"
            )
        return {**sources, self.verb: text.replace(self.old, self.new)}


_FENCE = "(ARGV[2] == '' or ARGV[2] == held[2] or ARGV[2] == held[4])"
_TURN = "if turn and string.match(turn, '^[^:]*:(.*)') ~= ARGV[1] then"

MUTATIONS = [
    Mutation("a late release frees the next hold", "two users", "release", _FENCE, "true"),
    Mutation(
        "a release needs no owner",
        "a child that dies",
        "release",
        "held = redis.call('HMGET', KEYS[1], ARGV[1], ",
        "held = redis.call('HMGET', KEYS[1], '@worker', ",
    ),
    Mutation(
        "a late renewal renews the next hold",
        "a renewed lease",
        "renew",
        "or held[2] ~= ARGV[2] then\n  return 0",
        "then\n  return 0",
        0,
        1,
    ),
    Mutation(
        "an acquire takes the lock after its deadline",
        "two users",
        "acquire",
        "now > tonumber(ARGV[6]) and ARGV[6] ~= '0'",
        "false",
    ),
    Mutation(
        "a late acquire replaces the owner's next hold",
        "a user that tries again",
        "acquire",
        "if is_mine and is_older(ARGV[5], held[3]) then",
        "if false then",
    ),
    Mutation(
        "a re-entry is counted, not set",
        "two users that re-enter",
        "acquire",
        "redis.call('HSET', KEYS[1], holder, depth)",
        "redis.call('HINCRBY', KEYS[1], holder, 1)",
    ),
    Mutation(
        "a newcomer overtakes the woken waiter",
        "a line of two, and a newcomer",
        "acquire",
        _TURN,
        "if false then",
        0,
    ),
    Mutation(
        "a turn outlives the acquire of its waiter",
        "a line of two, and a newcomer",
        "acquire",
        "  redis.call('DEL', KEYS[4])\n",
        "",
        0,
    ),
    Mutation(
        "a turn never ends",
        "a line of two, and a newcomer",
        "release",
        "redis.call('SET', KEYS[4], first, 'PX', TRUST)",
        "redis.call('SET', KEYS[4], first)",
    ),
    Mutation(
        "a turn that is given up is not passed on",
        "a waiter that stops waiting",
        "release",
        "if woken and woken ~= ARGV[7] then",
        "if woken then",
        0,
    ),
    Mutation(
        "a release wakes no waiter",
        "a line of two, and a newcomer",
        "release",
        "local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]\n  if not first",
        "local first = nil\n  if not first",
        0,
    ),
    Mutation(
        "a release wakes only the first waiter, alive or dead",
        "a line of two, and a newcomer",
        "release",
        "if is_heard(first, 'turn') then",
        "if is_heard(first, 'turn') or true then",
    ),
    Mutation(
        "a lock never expires",
        "two users",
        "acquire",
        "redis.call('PEXPIRE', KEYS[1], ARGV[3])\nreturn",
        "return",
        0,
    ),
    Mutation(
        "a line never expires",
        "a line of two, and a newcomer",
        "acquire",
        "      redis.call('PEXPIRE', KEYS[3], ARGV[10])\n",
        "",
        0,
    ),
    Mutation(
        "a token is remembered for ever",
        "two users",
        "release",
        "redis.call('SET', KEYS[2], held[2], 'PX', TOKEN_MEMORY)",
        "redis.call('SET', KEYS[2], held[2])",
        0,
    ),
    Mutation(
        "a token is not larger than the last",
        "two users",
        "acquire",
        "local token = math.max(now, last + 1)",
        "local token = math.max(1, last)",
        0,
    ),
    Mutation(
        "a second owner enters", "two users", "acquire", "if holder and not is_mine then", "if false then", 0
    ),
    Mutation(
        "the end of a redelivered run is not told",
        "a redelivered message",
        "release",
        "redis.call('SET', KEYS[5], is_redelivered and '1' or '0', 'PX', DONE_MEMORY)",
        "redis.call('EXISTS', KEYS[5])",
        0,
    ),
    Mutation(
        "a redelivered run releases before its end is known",
        "a redelivered message",
        "release",
        "if has_others and ARGV[3] == '1' then",
        "if false then",
        0,
    ),
    Mutation(
        "the run of a redelivered message does not learn it",
        "a redelivered message",
        "redelivery",
        "redis.call('HSET', KEYS[1], '@redelivered', 1)",
        "redis.call('EXISTS', KEYS[1])",
        0,
    ),
    Mutation(
        "a run that died counts as ended",
        "a redelivered message",
        "redelivery",
        "end\nreturn 0",
        "end\nreturn 2",
    ),
    Mutation(
        "a task does not take over what it holds since it was published",
        "two publishers of a unique task",
        "acquire",
        "elseif holder == 'queued:' .. id and depth == '1' then",
        "elseif false then",
        0,
    ),
    Mutation(
        "the next waiter is not told of a passed turn",
        "a worker that is full",
        "pass",
        "if redis.call('PUBLISH', channels .. other, said) > 0 then",
        "if false then",
        0,
    ),
    Mutation(
        "a passed turn never ends",
        "a worker that is full",
        "pass",
        "redis.call('SET', KEYS[3], waiter, 'PX', TRUST)",
        "redis.call('SET', KEYS[3], waiter)",
        0,
    ),
    Mutation(
        "a waiter in a worker takes no place",
        "tasks that wait in their workers",
        "wait",
        "redis.call('ZADD', KEYS[2], 'NX', since, ARGV[1])",
        "redis.call('EXISTS', KEYS[2])",
        0,
    ),
    Mutation(
        "a resting key can be entered",
        "a key that rests",
        "acquire",
        "if holder and not is_mine then",
        "if holder and not is_mine and string.sub(holder, 1, 5) ~= 'rest:' then",
        0,
    ),
]
