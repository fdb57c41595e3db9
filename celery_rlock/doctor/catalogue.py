"""All checks, in the order in which the report shows them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from celery_rlock.doctor import (
    bypass,
    configuration,
    delivery,
    redis_info,
    rights,
    round_trip,
    sharing,
    timing,
    workers,
)
from celery_rlock.doctor.findings import CouldNotLook, Finding, NotChecked, error, not_checked, ok
from celery_rlock.doctor.setup import Checker, Setup

#: What a check asks: only the app, the lock server, or the broker and the workers.
Asks = Literal["app", "server", "fleet"]


class Check(NamedTuple):
    name: str
    asks: Asks
    check: Checker
    fine: str = "fine"  # reported when the check finds nothing

    def findings(self, setup: Setup) -> list[Finding]:
        """At least one finding. It never raises: an exception becomes a finding."""
        try:
            return list(self.check(setup)) or [ok(self.fine)]
        except NotChecked as reason:
            return [not_checked(reason)]
        except CouldNotLook as reason:
            return [reason.finding]
        except Exception as failure:  # noqa: BLE001 - the other checks go on
            return [
                error(
                    f"this check failed: {type(failure).__name__}: {failure}",
                    "if no other check explains it, please report it as a bug",
                )
            ]


CHECKS = (
    Check("settings", "app", configuration.check_settings, "every rlock_ setting is known and takes effect"),
    Check(
        "password", "app", configuration.check_password, "rlock_url has no password that Celery would show"
    ),
    Check("tasks", "app", configuration.check_tasks),
    Check("bypass", "app", bypass.check_bypass, "no task overrides a method in a way that skips the lock"),
    Check("keys", "app", sharing.check_keys, "tasks that share a key have the same lock_ttl"),
    Check("shared", "app", sharing.check_shared, "the lock server is not on localhost, or the broker is too"),
    Check("results", "app", sharing.check_results, "no task needs a result that is not stored"),
    Check("leases", "app", timing.check_leases, "every lock_ttl is between 3 and 300 s"),
    Check("limits", "app", timing.check_limits, "no time limit conflicts with lock_wait or lock_max_hold"),
    Check("acks", "app", delivery.check_acks, "killed runs are redelivered"),
    Check("visibility", "app", delivery.check_visibility, "visibility_timeout is set, and long enough"),
    Check("prefetch", "app", delivery.check_prefetch, "waiting tasks leave room for other messages"),
    Check("waking", "app", delivery.check_waking, "a release wakes the next waiting task"),
    Check("connection", "server", redis_info.check_connection),
    Check("version", "server", redis_info.check_version),
    Check("role", "server", redis_info.check_role),
    Check("rights", "server", rights.check_rights),
    Check("scripts", "server", round_trip.check_scripts),
    Check("latency", "server", round_trip.check_latency),
    Check("clock", "server", redis_info.check_clock),
    Check("eviction", "server", redis_info.check_eviction),
    Check("persistence", "server", redis_info.check_persistence),
    Check("replicas", "server", redis_info.check_replicas),
    Check("broker", "fleet", workers.check_broker),
    Check("workers", "fleet", workers.check_workers),
    Check("agreement", "fleet", workers.check_agreement),
)
NAMES = tuple(check.name for check in CHECKS)
