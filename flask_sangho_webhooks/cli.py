"""The command line, ``flask sangho``."""

from __future__ import annotations

import datetime as dt
import math
import sys
import typing as t

import click
from flask import current_app
from flask.cli import AppGroup

from .config import DEFAULT_RETENTION, MIN_RETENTION
from .errors import WebhookError
from .extension import Endpoint, EXTENSION_KEY

_HOUR = dt.timedelta(hours=1)
_MAX_HOURS = 10 * 365 * 24

sangho = AppGroup("sangho", help="Look after Sangho's webhooks.")


class _Hours(click.FloatRange):
    """A number of hours, greater than 0 and at most ten years."""

    name = "hours"

    def convert(
        self, value: t.Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            hours = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of hours.", param, ctx)

        if not math.isfinite(hours) or not 0 < hours <= _MAX_HOURS:
            self.fail(f"{value} is not between 0 and {_MAX_HOURS} hours.", param, ctx)

        return hours


def _endpoints(name: str | None) -> list[Endpoint]:
    endpoints: dict[str, Endpoint] = current_app.extensions[EXTENSION_KEY]

    if name is None:
        return list(endpoints.values())

    if name not in endpoints:
        raise click.BadParameter(
            f"no endpoint is named {name!r}; there is {', '.join(sorted(endpoints))}.",
            param_hint="--name",
        )

    return [endpoints[name]]


@sangho.command()
@click.option(
    "--older-than",
    type=_Hours(),
    default=DEFAULT_RETENTION / _HOUR,
    show_default="72",
    metavar="HOURS",
    help="Delete records of events processed longer ago than this.",
)
@click.option("--batch-size", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option("--dry-run", is_flag=True, help="Say how many, delete nothing.")
@click.option("--force", is_flag=True, help="Allow less than 48 hours.")
@click.option("--name", help="Only this endpoint of the app.")
def cleanup(
    older_than: float, batch_size: int, dry_run: bool, force: bool, name: str | None
) -> None:
    """Delete old records of processed events.

    Sangho redelivers an event for up to 48 hours. A record that is deleted earlier no longer keeps
    its event from being processed again. Records are deleted in batches with a commit each;
    deliveries go on meanwhile, and it does no harm to interrupt the command or start it twice.
    """
    age = dt.timedelta(hours=older_than)

    if age < MIN_RETENTION and not force:
        raise click.BadParameter(
            "less than 48 hours: Sangho may still redeliver these events, and they would be"
            " processed again. Use --force if that is what you want.",
            param_hint="--older-than",
        )

    for endpoint in _endpoints(name):
        try:
            deleted = _clean_up(endpoint, age, batch_size, dry_run)
        except WebhookError as error:
            raise click.ClickException(str(error)) from error

        verb = "Would delete" if dry_run else "Deleted"
        click.echo(f"{verb} {deleted} records older than {older_than:g} hours.")


def _clean_up(endpoint: Endpoint, age: dt.timedelta, batch_size: int, dry_run: bool) -> int:
    guard = endpoint.guard

    if dry_run or not sys.stderr.isatty():
        return guard.cleanup(age, batch_size=batch_size, dry_run=dry_run)

    expired = guard.cleanup(age, dry_run=True)

    with click.progressbar(length=expired, label="Deleting", file=sys.stderr) as bar:
        return guard.cleanup(age, batch_size=batch_size, progress=bar.update)


@sangho.command()
def upgrade() -> None:
    """Create or adopt the table of processed events.

    For apps without Alembic: applies the packaged migration, and remembers it in the table
    'sangho_alembic_version'. A table that was made by hand from Sangho's guide keeps its rows.
    Apps with Flask-Migrate run 'flask db migrate' and 'flask db upgrade' in place of this.
    """
    from .migrate import upgrade_tables

    try:
        for line in upgrade_tables(_endpoints(None)):
            click.echo(line)
    except WebhookError as error:
        raise click.ClickException(str(error)) from error
