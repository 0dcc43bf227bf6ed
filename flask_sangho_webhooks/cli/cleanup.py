"""``flask sangho cleanup``."""

from __future__ import annotations

import datetime as dt
import sys

import click

from ..config import MIN_RETENTION
from ..extension import Endpoint
from ..guards.base import MAX_BATCH_SIZE
from . import endpoints, sangho

_HOUR = dt.timedelta(hours=1)
_MAX_HOURS = 100_000


def _age(
    context: click.Context, parameter: click.Parameter, hours: float | None
) -> dt.timedelta | None:
    if hours is None:
        return None

    if not 1 <= hours <= _MAX_HOURS:  # NaN is neither
        raise click.BadParameter(f"{hours:g} is not a number of hours from 1 to {_MAX_HOURS}.")

    return dt.timedelta(hours=hours)


@sangho.command()
@click.option(
    "--older-than",
    type=float,
    callback=_age,
    metavar="HOURS",
    help="Delete records of events processed longer ago than this. Less than 48 needs --force."
    "  [default: what SANGHO_WEBHOOK_RETENTION says, or else 72]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, MAX_BATCH_SIZE),
    default=MAX_BATCH_SIZE,
    show_default=True,
    help="Records deleted in one transaction, at most.",
)
@click.option("--dry-run", is_flag=True, help="Say how many records are old, and delete nothing.")
@click.option("--force", is_flag=True, help="Allow less than 48 hours.")
@click.option("--name", help="Clean up after this endpoint only.  [default: all of the app]")
def cleanup(
    older_than: dt.timedelta | None, batch_size: int, dry_run: bool, force: bool, name: str | None
) -> None:
    """Delete old records of processed events.

    Run it from time to time, once an hour or once a day. From a crontab:

    \b
        17 * * * *  cd /srv/shop && . ./env && .venv/bin/flask --app shop sangho cleanup

    A job of cron has neither the environment of the server nor its PATH. Here, the file 'env'
    exports the variables that the app is configured with.

    Sangho redelivers an event for up to 48 hours. An event whose record is deleted earlier would
    be processed again.

    Records are deleted in batches with a commit each: 5000 first, then as many as take half of
    SANGHO_WEBHOOK_LOCK_TIMEOUT. Deliveries go on meanwhile, and it does no harm to interrupt the
    command, or to start it twice.
    """
    if older_than is not None and older_than < MIN_RETENTION and not force:
        raise click.BadParameter(
            "Sangho redelivers an event for up to 48 hours; with its record deleted earlier, it"
            " would be processed again. Use 48 or more, or --force if that is what you want.",
            param_hint="--older-than",
        )

    chosen = endpoints(name)

    for endpoint in chosen:
        age = older_than or endpoint.config.retention
        count = _clean_up(endpoint, age, batch_size, dry_run)
        verb = "Would delete" if dry_run else "Deleted"
        noun = "record" if count == 1 else "records"
        whose = f" of {endpoint.webhooks.name!r}" if len(chosen) > 1 else ""
        click.echo(f"{verb} {count} {noun}{whose} older than {age / _HOUR:g} hours.")


def _clean_up(endpoint: Endpoint, age: dt.timedelta, batch_size: int, dry_run: bool) -> int:
    guard = endpoint.guard

    if dry_run or not sys.stderr.isatty():
        return guard.cleanup(age, batch_size=batch_size, dry_run=dry_run)

    expired = guard.cleanup(age, dry_run=True)

    with click.progressbar(length=expired, label=endpoint.webhooks.name, file=sys.stderr) as bar:
        return guard.cleanup(age, batch_size=batch_size, progress=bar.update)
