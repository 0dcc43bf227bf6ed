"""``flask sangho events``."""

from __future__ import annotations

import datetime as dt
import typing as t

import click

from ..extension import Endpoint
from ..guards import Record
from ..registry import is_known, is_pattern, suggestion
from . import endpoints, json_option, name_option, sangho, show_json, show_table


def _pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_pattern(value):
        raise click.BadParameter(
            f"{value!r} matches no event. Use an exact type, 'payment_intent.*' or '*'."
        )

    return value


@sangho.command()
@click.option(
    "pattern",
    "--type",
    metavar="PATTERN",
    callback=_pattern,
    help="Of these types only: an exact one, or 'payment_intent.*' as for handlers.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="How many events at most, of each endpoint.",
)
@json_option
@name_option
def events(pattern: str | None, limit: int, as_json: bool, name: str | None) -> None:
    """List the events that were processed, the newest first.

    \b
        flask --app shop sangho events
        flask --app shop sangho events --type 'payment_intent.*' --limit 100

    Times are in UTC, by the clock of the database. An event without a handler is not recorded, and
    neither is one whose handler has failed: it comes again.
    """
    chosen = [endpoint for endpoint in endpoints(name) if _has_records(endpoint)]
    found = [
        (endpoint, record)
        for endpoint in chosen
        for record in t.cast(t.Any, endpoint.guard).records(pattern, limit)
    ]

    if as_json:
        show_json([_as_dict(endpoint, record) for endpoint, record in found])
        return

    show_table([_row(endpoint, record, len(chosen) > 1) for endpoint, record in found])

    if not found:
        click.echo("No event is recorded." if pattern is None else _nothing(pattern))


def _has_records(endpoint: Endpoint) -> bool:
    """Whether the guard can list what it remembers.

    :raises click.ClickException: if not.
    """
    if hasattr(endpoint.guard, "records"):
        return True

    raise click.ClickException(
        f"The {type(endpoint.guard).__name__} of {endpoint.webhooks.name!r} cannot list events."
        " Leave it out with --name; the log has a line on each event."
    )


def _nothing(pattern: str) -> str:
    hint = "" if is_known(pattern) else suggestion(pattern)
    return f"No event of type {pattern!r} is recorded.{hint}"


def _row(endpoint: Endpoint, record: Record, with_endpoint: bool) -> tuple[str, ...]:
    row = (_time(record.processed_at) or "-", record.event_id, record.event_type)
    return (endpoint.webhooks.name, *row) if with_endpoint else row


def _as_dict(endpoint: Endpoint, record: Record) -> dict[str, str | None]:
    return {
        "endpoint": endpoint.webhooks.name,
        "id": record.event_id,
        "type": record.event_type,
        "processed_at": _time(record.processed_at),
    }


def _time(moment: dt.datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"
