"""All checks, in the order in which they are shown."""

from __future__ import annotations

from typing import Literal, NamedTuple

from celery_rlock.checks import (
    bypass,
    clock,
    configuration,
    connection,
    cycle,
    delivery,
    fleet,
    rights,
    server,
    sharing,
    timing,
)
from celery_rlock.checks.finding import Finding, NotChecked, error, ok
from celery_rlock.checks.primary import Look
from celery_rlock.checks.setup import Setup

#: Whom it asks: nobody but the app, the lock's server, or the broker and the workers.
Asks = Literal["app", "server", "fleet"]


class Check(NamedTuple):
    name: str
    asks: Asks
    look: Look
    fine: str = "fine"  # what is said when nothing was found

    def findings(self, setup: Setup) -> list[Finding]:
        """At least one; never an exception."""
        try:
            return list(self.look(setup)) or [ok(self.fine)]
        except NotChecked as reason:
            return [Finding("skip", f"not checked: {reason}")]
        except Exception as failure:  # noqa: BLE001 - the other checks go on
            return [
                error(
                    f"could not be checked: {type(failure).__name__}: {failure}",
                    "if no other check explains it, please report it",
                )
            ]


CHECKS = (
    Check("settings", "app", configuration.look_at_settings, "every rlock_ setting is known and seen"),
    Check("tasks", "app", configuration.look_at_tasks),
    Check("bypass", "app", bypass.look_at_bypass, "no task's own methods leave the lock out"),
    Check("keys", "app", sharing.look_at_keys, "tasks that share a key have the same lease"),
    Check("shared", "app", sharing.look_at_shared, "the lock's server is no more local than the broker"),
    Check("results", "app", sharing.look_at_results, "what is skipped or joined can be seen"),
    Check("leases", "app", timing.look_at_leases, "neither too long for a dead host nor too short to renew"),
    Check("limits", "app", timing.look_at_limits, "no time limit is at odds with a lock"),
    Check("acks", "app", delivery.look_at_acks, "a run that is killed is made up for"),
    Check("visibility", "app", delivery.look_at_visibility, "longer than a wait, and chosen"),
    Check("prefetch", "app", delivery.look_at_prefetch, "waiters leave room for other messages"),
    Check("waking", "app", delivery.look_at_waking, "waiters are woken by the release"),
    Check("connection", "server", connection.look_at_connection),
    Check("version", "server", server.look_at_version),
    Check("role", "server", server.look_at_role),
    Check("rights", "server", rights.look_at_rights),
    Check("scripts", "server", cycle.look_at_scripts),
    Check("latency", "server", cycle.look_at_latency),
    Check("clock", "server", clock.look_at_clock),
    Check("eviction", "server", server.look_at_eviction),
    Check("persistence", "server", server.look_at_persistence),
    Check("replicas", "server", server.look_at_replicas),
    Check("broker", "fleet", fleet.look_at_broker),
    Check("workers", "fleet", fleet.look_at_workers),
    Check(
        "agreement", "fleet", fleet.look_at_agreement, "all workers look for the locks where this app does"
    ),
)
NAMES = tuple(check.name for check in CHECKS)
