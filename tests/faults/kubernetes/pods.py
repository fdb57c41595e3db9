"""Pods, nodes and a Deployment: real workers that are started and stopped as Kubernetes does it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil

from tests.support.workers import Worker

POLL = 0.05


class Pod(Worker):
    """One worker. The words `within` start its command in a network or under a memory limit."""

    def __init__(self, app: str, *, within: Iterable[str] = (), **options) -> None:
        super().__init__(app, **options)
        self.node: Node | None = None
        self._within = list(within)

    def command(self) -> list[str]:
        return [*self._within, *super().command()]

    def kill(self) -> None:
        """Send SIGKILL to every process of the pod at once, as the kubelet does after the grace period."""
        family = psutil.Process(self.pid).children(recursive=True)
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        psutil.wait_procs(family, timeout=5)


class Node:
    """A machine that runs pods; a cordoned node gets no new pods."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pods: list[Pod] = []
        self.cordoned = False


class Deployment:
    """Equal pods, spread over the nodes. `make` returns a pod that is not launched yet."""

    def __init__(self, make: Callable[[], Pod], nodes: list[Node], *, grace: float) -> None:
        self.nodes, self.grace = nodes, grace
        self.gone: list[Pod] = []
        self.killed = 0
        self._make = make

    @property
    def pods(self) -> list[Pod]:
        return [pod for node in self.nodes for pod in node.pods]

    def scale(self, replicas: int) -> None:
        """Create missing pods and wait until they are ready; terminate surplus pods."""
        self.await_ready(self.create(replicas - len(self.pods)))
        self.terminate(self.pods[replicas:])

    def roll(self) -> None:
        """A rolling update: a new pod is ready before an old one ends (maxSurge 1, maxUnavailable 0)."""
        for old in list(self.pods):
            self.await_ready(self.create(1))
            self.terminate([old])

    def drain(self, node: Node) -> None:
        """Terminate all pods of a node at once, and start as many on other nodes at the same moment."""
        node.cordoned = True
        leaving = list(node.pods)
        for pod in leaving:
            pod.signal(signal.SIGTERM)
        arriving = self.create(len(leaving))
        self.terminate(leaving)
        self.await_ready(arriving)
        node.cordoned = False

    def create(self, count: int) -> list[Pod]:
        """Launch pods, each on the emptiest node."""
        return [self.place(self._make()) for _ in range(count)]

    def place(self, pod: Pod) -> Pod:
        """Launch this pod on the emptiest node."""
        pod.node = min((node for node in self.nodes if not node.cordoned), key=lambda node: len(node.pods))
        pod.node.pods.append(pod)
        pod.launch()
        return pod

    def await_ready(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            pod.await_ready()

    def terminate(self, pods: Iterable[Pod]) -> None:
        """Send SIGTERM to all, wait for the grace period, send SIGKILL to those that still run."""
        leaving = list(pods)
        for pod in leaving:
            pod.signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        while any(pod.running for pod in leaving) and time.monotonic() < deadline:
            time.sleep(POLL)
        for pod in leaving:
            if pod.running:
                pod.kill()
                self.killed += 1
            self.forget(pod)

    def replace(self, pod: Pod) -> None:
        """Start a new pod in place of one whose main process has died, as the kubelet does."""
        pod.wait()
        self.forget(pod)
        self.await_ready(self.create(1))

    def forget(self, pod: Pod) -> None:
        pod.node.pods.remove(pod)
        self.gone.append(pod)

    def stop(self) -> None:
        """End everything at once."""
        for pod in [*self.pods, *self.gone]:
            pod.stop(timeout=0)
