"""`celery -A proj rlock doctor`: run all checks, and report each problem with what to do about it."""

from __future__ import annotations

import click

from celery_rlock.doctor.catalogue import CHECKS, NAMES
from celery_rlock.doctor.findings import Report
from celery_rlock.doctor.output import ExitCode, Output
from celery_rlock.doctor.setup import Setup

#: An error in one of these means that a server could not be reached.
_REACHING = ("connection", "broker")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings, too.")
@click.option("--skip", multiple=True, type=click.Choice(NAMES), help="Leave out a check; may be repeated.")
@click.option(
    "--timeout",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    show_default=True,
    help="Seconds to wait for the broker and the workers to answer.",
)
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool, strict: bool, skip: tuple[str, ...], timeout: float) -> None:
    """Check settings, tasks, the lock server, the broker and the workers.

    \b
    Exit codes:
      0  no errors; there may be warnings
      1  errors, or with --strict warnings
      2  the command line is wrong
      3  the lock server or the broker cannot be reached
    """
    setup = Setup(ctx.obj.app, timeout=timeout)
    setup.load()
    wanted = [check for check in CHECKS if check.name not in skip]
    report = Report([(check.name, finding) for check in wanted for finding in check.findings(setup)])
    report.write(Output(as_json=as_json, no_color=ctx.obj.no_color))
    ctx.exit(_exit_code(report, strict=strict))


def _exit_code(report: Report, *, strict: bool) -> ExitCode:
    if report.has_error_in(*_REACHING):
        return ExitCode.UNREACHABLE
    return ExitCode.PROBLEM if report.errors or (strict and report.warnings) else ExitCode.FINE
