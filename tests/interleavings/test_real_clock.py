"""The virtual clock changes nothing: the shipped scripts answer the same on the server's own clock."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from tests.interleavings.explorer import Explorer
from tests.interleavings.scenarios import SCENARIOS
from tests.interleavings.virtual_server import COMMAND, NOW, VirtualServer, shipped_sources

_SAMPLES = 15  #: requests of each script in each scenario
_TIME = re.compile(r"\d{10,}")
_MICROSECONDS = re.compile(r"\d{15,}")
_LONG_ENOUGH = 900  #: milliseconds that a slow machine does not take for one request


def masked(value):
    """Points in time and durations differ from run to run."""
    if isinstance(value, (list, tuple)):
        return [masked(part) for part in value]
    if isinstance(value, str):
        return _TIME.sub("time", value)
    if isinstance(value, int) and abs(value) >= 100:
        return "time" if value > 0 else value
    return value


def at(value, now):
    """The same point in time, seen from the real clock."""
    if isinstance(value, str):
        return _MICROSECONDS.sub(lambda found: str(int(found[0]) - NOW + now), value)
    return value


def ends_soon(key):
    """Whether a place or a pending call in it ends soon, or a duration in it grows on a real clock."""
    texts = [value for value in key.values if isinstance(value, str)]
    ends = [int(found) for text in texts for found in _MICROSECONDS.findall(text)]
    return "@told" in texts or any(0 <= moment - NOW <= _LONG_ENOUGH * 1000 for moment in ends)


def restore(client, keys, now):
    for key in keys:
        values = [at(value, now) for value in key.values]
        if key.kind == "hash":
            client.hset(key.name, items=values)
        elif key.kind == "zset":
            client.zadd(key.name, dict(zip(values[::2], map(int, values[1::2]), strict=True)))
        else:
            client.set(key.name, values[0])
        client.pexpire(key.name, key.left)


def contents(client):
    found = []
    for name in sorted(client.keys("*")):
        kind = client.type(name)
        if kind == "hash":
            values = [part for pair in sorted(client.hgetall(name).items()) for part in pair]
        elif kind == "zset":
            values = client.zrange(name, 0, -1)
        else:
            values = [client.get(name)]
        found.append((name, kind, masked(values), client.pttl(name) > 0))
    return found


def expected_contents(keys):
    return [
        (
            key.name,
            key.kind,
            masked(list(key.values[::2] if key.kind == "zset" else key.values)),
            key.left > 0,
        )
        for key in keys
    ]


def test_the_scripts_answer_the_same_on_the_real_clock(server):
    client = server.client(decode_responses=True)
    sources = shipped_sources()
    compared = Counter()
    for scenario in SCENARIOS:
        virtual = VirtualServer(client)
        Explorer(replace(scenario, faults=1, delays=0), virtual).explore(500)
        samples = Counter()
        for (request, keys, listeners), reply in virtual._known.items():
            samples[request.verb] += 1
            is_steady = all(key.left > _LONG_ENOUGH and not ends_soon(key) for key in keys)
            if request.verb == COMMAND or not is_steady or samples[request.verb] > _SAMPLES:
                continue
            client.flushall()
            with client.pubsub() as pubsub:
                for channel in listeners:
                    pubsub.subscribe(channel)
                    assert pubsub.get_message(timeout=5)["type"] == "subscribe"
                seconds, microseconds = client.time()
                now = seconds * 1_000_000 + microseconds
                restore(client, keys, now)
                args = [at(arg, now) for arg in request.args]
                value = client.eval(sources[request.verb], len(request.names), *request.names, *args)
            assert masked(value) == masked(reply.value), request
            assert contents(client) == expected_contents(reply.keys), request
            compared[request.verb] += 1
    assert set(compared) == set(sources)
