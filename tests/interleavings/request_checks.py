"""What the server must not do with a request, whatever the order of the steps."""

from __future__ import annotations

from typing import Any

from celery_rlock.server.owner import Owner
from tests.interleavings.clients import KEYS
from tests.interleavings.holders import Holder, has_room, holders_of, limit_of
from tests.interleavings.pending_checks import check_pending_request
from tests.interleavings.virtual_server import NOW, Request
from tests.interleavings.world import Intent, Spec, Violation, World

ACQUIRES = ("acquire", "acquire_place")
_SINCE = {"acquire": 8, "acquire_place": 10}  #: where each says since when its caller has waited
_RELEASED = 1

_Specs = tuple[Spec, ...]


def checked(
    specs: _Specs, before: World, after: World, request: Request, intent: Intent, reply: Any
) -> World:
    """Check what the request has changed. Returns the world that remembers its tokens."""
    _check_others(before, after, request, intent)
    if request.verb == "release":
        _check_woken(specs, before, after, request, reply)
    if request.verb == "join" and reply:
        _check_joined(before, intent)
    if request.verb in {"replace", "renew"}:
        _check_told(before, after, request, reply)
    check_pending_request(specs, before, request, reply)
    owner, _ = intent
    old = {holder.field: holder for holder in holders_of(before.lock)}
    queued = f"queued:{owner.task_id}"
    is_refused = request.verb == "acquire" and before.lock == after.lock and not _is_too_late(request)
    if is_refused and queued in old and queued != owner.field:
        raise Violation(f"{owner.field} did not get the lock that it has had since it was published")
    known = {holder.token for holder in old.values()}
    for new in holders_of(after.lock):
        if new.token not in known and not new.waiter:
            if not old.keys() & {owner.field, queued}:
                _check_turn(before, request, intent)
            after = _with_token(after, new, request)
    return after


def _check_others(before: World, after: World, request: Request, intent: Intent) -> None:
    """A request changes no hold but that of its owner, and no lease becomes shorter."""
    owner, names = intent
    new = {holder.field: holder for holder in holders_of(after.lock)}
    for holder in holders_of(before.lock):
        now = new.get(holder.field)
        if now is not None and now.identity == holder.identity and now.left == holder.left:
            continue
        if holder.waiter:
            is_own = holder.waiter.endswith(f":{owner.field}")
        else:
            is_own = holder.field == owner.field and (names is None or bool({*names} & {*holder.names}))
        if now is not None and now.identity == holder.identity:
            if holder.waiter and now.left > holder.left:
                continue  # it was woken again
            if not is_own:
                raise Violation(
                    f"a {request.verb} of {owner.field} {names} changed the lease of {holder.field}"
                )
            if now.left < holder.left:
                raise Violation(f"a {request.verb} made the lease shorter")
            continue
        is_used = request.verb == "release" and request.args[1] == holder.token
        if now is None and holder.stays and is_used and not any(one.rests for one in new.values()):
            raise Violation(f"the place of {holder.field} is free {holder.stays} ms too early")
        replaces = request.verb in ACQUIRES and holder.field in {owner.field, f"queued:{owner.task_id}"}
        if not is_own and not replaces:
            what = f"{holder.field} {holder.attempt}"
            raise Violation(f"a {request.verb} of {owner.field} {names} changed the hold of {what}")


def _with_token(after: World, new: Holder, request: Request) -> World:
    """Check an ownership that has begun, and remember its token."""
    if request.verb not in ACQUIRES:
        raise Violation(f"a {request.verb} gave the lock a token")
    if _is_too_late(request):
        raise Violation("an acquire took the lock after its deadline")
    if int(new.token) <= after.last_token:
        raise Violation("the token did not grow")
    return after._replace(last_token=int(new.token))


def _check_woken(specs: _Specs, before: World, after: World, request: Request, reply: Any) -> None:
    """A release that makes room has woken a waiter whose process is there, for each place that is free."""
    is_wake = not request.args[0]
    if reply != _RELEASED and not is_wake:
        return
    alive = {
        spec.waiter
        for spec, process in zip(specs, before.processes, strict=True)
        if process.alive and process.listening
    }
    old, new = holders_of(before.lock), holders_of(after.lock)
    woken_before, woken = before.key(KEYS.woken), after.key(KEYS.woken)
    turns = {holder.waiter for holder in new} - {holder.waiter for holder in old}
    if woken is not None and woken != woken_before:
        turns.add(woken.values[0])
    if turns - alive:
        raise Violation(f"a release woke a waiter that is gone: {turns - alive}")
    if woken is not None or (woken_before is not None and request.args[6:7] != (woken_before.values[0],)):
        return
    has_left = {holder.field for holder in old if not holder.waiter} - {holder.field for holder in new}
    rests = {holder.field for holder in new if holder.rests} - {holder.field for holder in old}
    line = after.key(KEYS.waiters)
    if line is not None and (is_wake or (has_left and not rests)):
        first = line.values[0]
        if first in alive and has_room(after.lock, limit_of(first)):
            raise Violation(f"a release did not wake {first}, which is alive")


def _check_turn(before: World, request: Request, intent: Intent) -> None:
    """The line has precedence: a newcomer gets a free lock only if there is no line."""
    owner, _ = intent
    mine = f":{owner.field}"
    if any(holder.waiter.endswith(mine) for holder in holders_of(before.lock)):
        return
    turn, line = before.key(KEYS.woken), before.key(KEYS.waiters)
    if turn is not None:
        if not turn.values[0].endswith(mine):
            raise Violation(f"{owner.field} took the lock in the turn of {turn.values[0]}")
    elif line is not None and not line.values[0].endswith(mine):
        at = _SINCE.get(request.verb, len(request.args))
        since = int((*request.args[at : at + 1], "0")[0])
        if not since or since > int(line.values[1]):
            raise Violation(f"{owner.field} took the lock before {line.values[0]}, which waited")


def _check_joined(before: World, intent: Intent) -> None:
    """The holder learns of another delivery of its message only if that asks for the lock."""
    owner, _ = intent
    if any(Owner.of_field("", holder.field).message == owner.message for holder in holders_of(before.lock)):
        raise Violation(f"{owner.field} waits, and the run of its message does not learn of it")


def _check_told(before: World, after: World, request: Request, reply: Any) -> None:
    """A holder that is to end learns it with its next renewal, and the caller that replaces it is told so."""
    if request.verb == "replace":
        if reply[0] == 1 and (after.lock is None or after.lock.field("@replaced") != request.args[2]):
            raise Violation(f"{reply[2]} is to end for {request.args[2]}, and Redis does not say so")
        newest = before.key(KEYS.newest)
        since, _, newest_id = newest.values[1].partition(" ") if newest is not None else ("0", "", "")
        if reply[0] != 0 and newest_id != request.args[2] and int(since) > int(request.args[3]):
            raise Violation(f"{request.args[2]} does not learn that the newer {newest_id} waits")
        return
    replaced_by = before.lock.field("@replaced") if before.lock is not None else None
    if reply == 1 and replaced_by:
        raise Violation(f"{request.args[0]} does not learn that {replaced_by} replaces it")


def _is_too_late(request: Request) -> bool:
    return request.args[5] != "0" and int(request.args[5]) < NOW
