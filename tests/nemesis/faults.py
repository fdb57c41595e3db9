"""What the nemesis does. A fault is a generator: it begins, yields how long it lasts, and ends."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from tests.faults.topology.overlap_nemesis import ALL_FAULTS
from tests.faults.topology.overlap_nemesis import Nemesis as SentinelFaults
from tests.nemesis.lock_servers import ReplicatedCluster, Sentinel, Standalone
from tests.nemesis.worlds import FleetWorld, RLockWorld, World
from tests.support.cluster import Migration
from tests.support.daemon import Daemon

Act = Callable[[World, random.Random], Iterator[float]]


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault: where it can happen, and what it does."""

    name: str
    kind: str  #: "lock server", "network" or "process"
    act: Act
    only: tuple[type[Any], ...] = (object,)  #: the worlds, or their lock servers, where it can happen
    is_mild: bool = True  #: whether every process lives on, as the soak needs it

    def fits(self, world: World) -> bool:
        return isinstance(world, self.only) or isinstance(world.servers, self.only)


FAULTS: list[FaultKind] = []


def fault(name: str, kind: str, *only: type[Any], is_mild: bool = True) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        FAULTS.append(FaultKind(name, kind, act, only or (object,), is_mild))
        return act

    return register


# The network, between one process or all of them and the lock servers.


def _some(world: World, choice: random.Random) -> list[Daemon]:
    """One process, or all."""
    return world.processes if choice.random() < 0.4 else [choice.choice(world.processes)]


@fault("connections cut", "network")
def cut(world: World, choice: random.Random) -> Iterator[float]:
    for _ in range(choice.randrange(1, 4)):
        for process in _some(world, choice):
            world.link_of(process).cut()
        yield choice.uniform(0.05, 0.5)


@fault("connections refused", "network")
def refuse(world: World, choice: random.Random) -> Iterator[float]:
    """Sometimes for longer than the lease."""
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.refuse()
    yield choice.uniform(0.3, 1.4) * world.ttl
    _mend(links)


@fault("requests and replies slow", "network")
def slow(world: World, choice: random.Random) -> Iterator[float]:
    """Requests of different connections overtake each other."""
    links = [world.link_of(process) for process in _some(world, choice)]
    longest = choice.choice((0.05, 0.3, 0.9))
    for link in links:
        link.requests.slow(0, longest)
        link.replies.slow(0, longest)
    yield choice.uniform(0.5, 1.5) * world.ttl
    _mend(links)


@fault("requests late", "network")
def late(world: World, choice: random.Random) -> Iterator[float]:
    """Some requests arrive when their client has given up on them."""
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.requests.slow(0.5, 3.0, chance=choice.uniform(0.1, 0.5))
    yield choice.uniform(1.0, 2.0) * world.ttl
    _mend(links)
    yield 3.0  # the last of them arrive


@fault("requests held", "network")
def hold_requests(world: World, choice: random.Random) -> Iterator[float]:
    """All requests wait, and arrive at once in the end, also those that were given up."""
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.requests.held = True
    yield choice.uniform(0.5, 1.4) * world.ttl
    _mend(links)


@fault("replies held", "network")
def hold_replies(world: World, choice: random.Random) -> Iterator[float]:
    """The server executes everything, and no client hears of it for a while."""
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.replies.held = True
    yield choice.uniform(0.5, 1.4) * world.ttl
    _mend(links)


@fault("requests lost", "network")
def lose_requests(world: World, choice: random.Random) -> Iterator[float]:
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.requests.loses = True
    yield choice.uniform(0.1, 1.4) * world.ttl
    _mend(links)


@fault("replies lost", "network")
def lose_replies(world: World, choice: random.Random) -> Iterator[float]:
    links = [world.link_of(process) for process in _some(world, choice)]
    for link in links:
        link.replies.loses = True
    yield choice.uniform(0.1, 1.4) * world.ttl
    _mend(links)


def _mend(links: Iterable[Any]) -> None:
    for link in links:
        link.mend()


# The lock servers.


@fault("server frozen", "lock server", Standalone)
def freeze_server(world: World, choice: random.Random) -> Iterator[float]:
    world.servers.server.pause()
    yield choice.uniform(0.1, 1.4) * world.ttl
    world.servers.server.resume()


@fault("restart", "lock server", Standalone)
def restart(world: World, choice: random.Random) -> Iterator[float]:
    server = world.servers.server
    server.kill()
    yield choice.uniform(0.0, 1.0) * world.ttl
    server.started()


@fault("scripts flushed", "lock server")
def flush_scripts(world: World, choice: random.Random) -> Iterator[float]:
    for _ in range(3):
        _on_each(world, lambda client: client.script_flush())
        yield choice.uniform(0.05, 0.2)


@fault("clients killed", "lock server")
def kill_clients(world: World, choice: random.Random) -> Iterator[float]:
    """Those that have subscribed, or all."""
    kinds = choice.choice((("pubsub",), ("normal", "pubsub")))
    for _ in range(3):
        for kind in kinds:
            _on_each(world, lambda client, kind=kind: client.client_kill_filter(_type=kind, skipme=True))
        yield choice.uniform(0.05, 0.3)


def _on_each(world: World, what: Callable[[redis.Redis], object]) -> None:
    for server in world.servers.primaries():
        with contextlib.suppress(redis.RedisError), server.client(single_connection_client=True) as client:
            what(client)


def _sentinel_fault(name: str) -> Act:
    def act(world: World, choice: random.Random) -> Iterator[float]:
        faults = SentinelFaults(world.servers.setup, choice.randrange(10**9))
        with contextlib.suppress(AssertionError):  # the sentinels did not fail over in time
            getattr(faults, name)()
        yield choice.uniform(0.2, 1.0)
        world.servers.mend()

    return act


for _name in ALL_FAULTS:
    fault(f"primary: {_name.replace('_', ' ')}", "lock server", Sentinel)(_sentinel_fault(_name))


@fault("kill a primary", "lock server", ReplicatedCluster)
def kill_primary(world: World, choice: random.Random) -> Iterator[float]:
    cluster, key = world.servers.cluster, _redis_key(world, choice)
    victim = cluster.primary_of(key)
    victim.kill()
    with contextlib.suppress(AssertionError):
        cluster.await_failover(victim, key)
    yield choice.uniform(0.0, 0.5)
    cluster.mend()


@fault("freeze a primary", "lock server", ReplicatedCluster)
def freeze_primary(world: World, choice: random.Random) -> Iterator[float]:
    """Sometimes so briefly that no replica takes over."""
    cluster, key = world.servers.cluster, _redis_key(world, choice)
    victim = cluster.primary_of(key)
    victim.pause()
    yield choice.choice((0.3, 1.0, 3.0))
    victim.resume()
    yield 0.5
    cluster.mend()


@fault("CLUSTER FAILOVER", "lock server", ReplicatedCluster)
def demote(world: World, choice: random.Random) -> Iterator[float]:
    cluster, key = world.servers.cluster, _redis_key(world, choice)
    victim = cluster.primary_of(key)
    cluster.demote(victim)
    with contextlib.suppress(AssertionError):
        cluster.await_failover(victim, key)
    yield 0.1
    cluster.mend()


@fault("a slot moves", "lock server", ReplicatedCluster)
def move_slot(world: World, choice: random.Random) -> Iterator[float]:
    migration = Migration(world.servers.cluster, _redis_key(world, choice))
    migration.begin()
    yield choice.uniform(0.0, 0.3)
    migration.move_keys()
    migration.end()


def _redis_key(world: World, choice: random.Random) -> str:
    return f"rlock:{{{choice.choice(list(world.keys))}}}"


# The processes.


@fault("a process suspended", "process")
def suspend(world: World, choice: random.Random) -> Iterator[float]:
    """SIGSTOP to all of its processes, mostly for longer than the lease."""
    process = choice.choice(world.processes)
    pids = [process.pid, *process.children()]
    world.suspend(pids)
    yield choice.uniform(0.5, 2.0) * world.ttl
    world.resume(pids)


@fault("a process killed", "process", RLockWorld, is_mild=False)
def kill_process(world: World, choice: random.Random) -> Iterator[float]:
    process = choice.choice(world.processes)
    world.kill_all([process.pid])
    process.wait()
    yield choice.uniform(0.0, 1.0)
    world.revive()


@fault("signals at any line", "process", RLockWorld)
def interrupt(world: World, choice: random.Random) -> Iterator[float]:
    for _ in range(40):
        for process in world.processes:
            process.signal(signal.SIGUSR1)
        yield choice.uniform(0.005, 0.05)


@fault("a worker killed", "process", FleetWorld, is_mild=False)
def kill_worker(world: World, choice: random.Random) -> Iterator[float]:
    world.kill(choice.choice(world.processes))
    yield choice.uniform(0.0, 1.0)
    world.revive()


@fault("a worker shut down", "process", FleetWorld, is_mild=False)
def shut_down(world: World, choice: random.Random) -> Iterator[float]:
    """A warm shutdown, as at each update of a fleet."""
    worker = choice.choice(world.processes)
    worker.signal(signal.SIGTERM)
    for _ in range(200):
        if not worker.running:
            break
        yield 0.1
    world.revive()


@fault("a pool process killed", "process", FleetWorld)
def kill_child(world: World, choice: random.Random) -> Iterator[float]:
    worker = choice.choice(world.processes[:2])
    for _ in range(choice.randrange(1, 4)):
        children = worker.children()
        if children:
            world.kill_all([choice.choice(children)])
        yield choice.uniform(0.1, 0.6)


@fault("a pool process suspended", "process", FleetWorld)
def suspend_child(world: World, choice: random.Random) -> Iterator[float]:
    children = choice.choice(world.processes[:2]).children()
    pids = [choice.choice(children)] if children else []
    world.suspend(pids)
    yield choice.uniform(0.5, 1.5) * world.ttl
    world.resume(pids)


@fault("a parent process suspended", "process", FleetWorld)
def suspend_parent(world: World, choice: random.Random) -> Iterator[float]:
    """Its pool processes go on, and nobody acknowledges what they do."""
    worker = choice.choice(world.processes[:2])
    world.suspend([worker.pid])
    yield choice.uniform(0.5, 3.0) * world.ttl
    world.resume([worker.pid])
