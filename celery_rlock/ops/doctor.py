"""`celery -A proj rlock doctor`: looks over the whole set-up, and says what to do."""

from __future__ import annotations

import click

from celery_rlock.checks.catalogue import CHECKS, NAMES
from celery_rlock.checks.setup import Setup
from celery_rlock.ops.report import Line, Report
from celery_rlock.ops.session import FINE, PROBLEM, UNREACHABLE

#: Without these the others have nothing to look at.
_REACHING = ("connection", "broker")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option("--skip", multiple=True, type=click.Choice(NAMES), help="Leave a check out; may be repeated.")
@click.option(
    "--timeout",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    show_default=True,
    help="Seconds that the broker and the workers have to answer.",
)
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool, strict: bool, skip: tuple[str, ...], timeout: float) -> None:
    """Check settings, tasks, the lock's server, the broker and the workers.

    \b
    Exit codes:
      0  nothing is wrong; there may be warnings
      1  something is wrong, or with --strict there are warnings
      2  the command line is wrong
      3  the lock's server or the broker cannot be asked
    """
    setup = Setup(ctx.obj.app, timeout=timeout)
    setup.load()
    report = Report(
        [
            Line(check.name, finding)
            for check in CHECKS
            if check.name not in skip
            for finding in check.findings(setup)
        ]
    )
    if as_json:
        click.echo(report.as_json())
    else:
        report.show()
    ctx.exit(_exit_code(report, strict=strict))


def _exit_code(report: Report, *, strict: bool) -> int:
    if report.has_error_in(*_REACHING):
        return UNREACHABLE
    return PROBLEM if report.errors or (strict and report.warnings) else FINE
