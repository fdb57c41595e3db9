"""`celery rlock ls` with 10,000 locks among a million other keys: its speed, and the delay for other clients.

    python -m benchmarks.listing [other keys] [locks]

The server reports its slowest command (SLOWLOG) and the average time of a SCAN and of a batch of reads
(commandstats). Another client sends PING all the time. Its slowest answers include the noise of the machine,
so it does the same before the listing, for comparison.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

from celery import Celery

from celery_rlock.server.client import connect
from celery_rlock.server.inventory import BATCH
from celery_rlock.server.lock_server import RedisLockServer
from celery_rlock.server.owner import Owner
from tests.support.clients import bare_client
from tests.support.servers import Server, available_kinds

OTHERS, LOCKS = 1_000_000, 10_000
QUIET_SECONDS = 5
BLOCKED_MS = 10
AT_ONCE = 5_000

app = Celery("listing", broker=os.environ.get("RLOCK_BENCH_URL"), set_as_current=False)


def fill(server, others, locks):
    lock_server = RedisLockServer(connect(server.url))
    with server.client() as client:
        for first in range(0, others, AT_ONCE):
            client.mset({f"other:{number}": number for number in range(first, min(first + AT_ONCE, others))})
    for number in range(locks):
        owner = Owner(f"worker-{number % 50}@pod", f"{number:08x}", f"00000000-0000-4000-8000-{number:012x}")
        lock_server.acquire(lock_server.redis_keys(f"account:{number}"), owner, 1, 3600, "proj.charge")


def ping_on(url, stopped, answer):
    client, times = bare_client(url), []
    while not stopped.wait(0.001):
        began = time.perf_counter()
        client.ping()
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    p99 = times[len(times) * 99 // 100]
    answer.put(f"{len(times)} pings, p50 {times[len(times) // 2]:.2f} ms, p99 {p99:.2f} ms")


def beside_pings(server, do):
    stopped, answer = multiprocessing.Event(), multiprocessing.Queue()
    prober = multiprocessing.Process(target=ping_on, args=(server.url, stopped, answer), daemon=True)
    prober.start()
    result = do()
    stopped.set()
    return result, answer.get()


def celery_rlock(server, *args):
    """The number of lines that the command prints, and the seconds until the second and the last line."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.listing", "rlock", *args]
    environment = {**os.environ, "RLOCK_BENCH_URL": server.url}
    began, second, count = time.perf_counter(), 0.0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        for count, _ in enumerate(process.stdout, 1):
            second = second or (count == 2 and time.perf_counter() - began)
    return count, second, time.perf_counter() - began


def report(client, rows, first, last, start):
    slow = [entry["duration"] / 1000 for entry in client.slowlog_get(100_000)]
    stats = client.info("commandstats")
    scan, scans = stats["cmdstat_scan"]["usec_per_call"] / 1000, stats["cmdstat_scan"]["calls"]
    read = (
        sum(stats[f"cmdstat_{name}"]["usec_per_call"] for name in ("hscan", "pttl", "zcard")) * BATCH / 1000
    )
    print(
        f"{rows} rows; the first after {first:.2f} s, the last after {last:.2f} s; --help takes {start:.2f} s"
    )
    print(f"{scans} SCANs of {scan:.2f} ms on average; a batch of reads takes {read:.2f} ms")
    print(f"slowest command {max(slow, default=0):.2f} ms; over 10 ms: {sum(ms > BLOCKED_MS for ms in slow)}")


def main(others=OTHERS, locks=LOCKS):
    kind = available_kinds()[0]
    with Server.start(kind) as server, server.client() as client:
        fill(server, int(others), int(locks))
        print(f"{kind} with {client.dbsize()} keys, {locks} of them locks")
        _, quiet = beside_pings(server, lambda: time.sleep(QUIET_SECONDS))
        *_, start = celery_rlock(server, "--help")
        client.config_set("slowlog-log-slower-than", 200)
        client.config_set("slowlog-max-len", 100_000)
        client.slowlog_reset()
        client.config_resetstat()
        (lines, first, last), busy = beside_pings(server, lambda: celery_rlock(server, "ls"))
        report(client, lines - 1, first, last, start)
        print(f"another client before ls:  {quiet}")
        print(f"another client during ls:  {busy}")


if __name__ == "__main__":
    main(*sys.argv[1:])
