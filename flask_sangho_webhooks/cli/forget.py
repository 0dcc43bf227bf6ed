"""``flask sangho forget``."""

from __future__ import annotations

import click

from ..errors import EventInProgress, GuardUnavailable, PayloadError
from ..event import Event
from ..extension import Endpoint
from . import endpoints, name_option, sangho

NOT_RECORDED = "{} was not recorded."


def _event_ids(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> list[str]:
    for value in values:
        try:
            Event(id=value, type="webhook.test")
        except PayloadError as error:
            raise click.BadParameter(f"{value!r} is not the id of an event. {error}") from error

    return list(dict.fromkeys(values))


@sangho.command()
@click.argument("event_ids", metavar="ID...", nargs=-1, required=True, callback=_event_ids)
@click.option("--yes", is_flag=True, help="Do not ask.")
@name_option
def forget(event_ids: list[str], yes: bool, name: str | None) -> None:
    """Forget that events were processed, so that a redelivery runs their handlers again.

    For an event whose handlers succeeded and did the wrong thing. What they did is not undone:
    correct that first, or their effects are there twice.

    \b
        flask --app shop sangho forget evt_1f2e3d4c
        flask --app shop sangho events | grep evt_   # what there is

    Sangho itself redelivers only what was not answered with 2xx, and for 48 hours at most. Whoever
    has stored the body can call webhooks.process(Event.from_body(body)) afterwards.

    The exit code is 1 if one of the events was not recorded, or is being processed right now; the
    others are forgotten all the same.
    """
    chosen = endpoints(name)
    left = event_ids if yes else _ask(chosen, event_ids)
    forgotten = [_forget(chosen, event_id) for event_id in left]

    if not all(forgotten) or left != event_ids:
        raise click.exceptions.Exit(1)


def _ask(chosen: list[Endpoint], event_ids: list[str]) -> list[str]:
    """Ask about the events that are recorded, and name the others.

    :return: those to forget.
    """
    recorded = [i for i in event_ids if any(endpoint.guard.seen(i) for endpoint in chosen)]

    for event_id in event_ids:
        if event_id not in recorded:
            click.echo(NOT_RECORDED.format(event_id), err=True)

    if recorded:
        click.confirm(
            f"A redelivery of {', '.join(recorded)} would run the handlers again. Forget"
            f" {'it' if len(recorded) == 1 else 'them'}?",
            abort=True,
        )

    return recorded


def _forget(chosen: list[Endpoint], event_id: str) -> bool:
    """Forget one event, and say so.

    :return: whether it was recorded, and no endpoint is left with it.
    """
    forgotten = []
    kept = False

    for endpoint in chosen:
        try:
            if endpoint.guard.forget(event_id):
                forgotten.append(endpoint.webhooks.name)
        except (EventInProgress, GuardUnavailable) as error:
            kept = True
            click.echo(f"{event_id} was not forgotten{_of(endpoint, chosen)}: {error}", err=True)

    if forgotten:
        whose = f" by {', '.join(forgotten)}" if len(chosen) > 1 else ""
        click.echo(f"{event_id} was forgotten{whose}.")
    elif not kept:
        click.echo(NOT_RECORDED.format(event_id), err=True)

    return bool(forgotten) and not kept


def _of(endpoint: Endpoint, chosen: list[Endpoint]) -> str:
    return f" by {endpoint.webhooks.name}" if len(chosen) > 1 else ""
