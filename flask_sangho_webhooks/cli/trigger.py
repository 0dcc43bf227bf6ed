"""``flask sangho trigger``."""

from __future__ import annotations

import collections.abc as c
import functools
import itertools
import json
import typing as t
import urllib.parse

import click
from flask import Flask

from .._context import this_app
from ..errors import PayloadError
from ..event import Event
from ..event_types import KNOWN_TYPES
from ..extension import Endpoint
from ..registry import suggestion
from ..samples import sample, SAMPLES
from ..testing import build_event, find_endpoint, find_path, SanghoTestClient
from . import endpoints, sangho
from ._delivery import Answer, Delivery, hint, to_app, to_server


def _known_types() -> str:
    families = itertools.groupby(KNOWN_TYPES, lambda known: known.rpartition(".")[0])
    lines = (
        f"  {family}.  {', '.join(known.rpartition('.')[2] for known in types)}"
        for family, types in families
    )
    return "\n".join(["\b", "Known types:", *lines])


def _complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    return [known for known in KNOWN_TYPES if known.startswith(typed)]


def _json(context: click.Context, parameter: click.Parameter, value: str | None) -> t.Any:
    if value is None:
        return None

    try:
        if value.startswith("@"):
            with click.open_file(value[1:], encoding="utf-8") as file:
                value = file.read()

        return json.loads(value)
    except OSError as error:
        raise click.BadParameter(f"Cannot read the file: {error.strerror}.") from error
    except ValueError as error:
        raise click.BadParameter(
            f"This is not JSON: {error}. In a shell, put it in single quotes:"
            """ --data '{"amount": 5000}'."""
        ) from error


def _url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None

    try:
        url = urllib.parse.urlsplit(value)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        usable = False

    if not usable:
        raise click.BadParameter("Give a whole URL, such as http://127.0.0.1:5000/webhook.")

    if url.username is not None:
        raise click.BadParameter("A user name in the URL is of no use: Sangho sends none.")

    return value


@sangho.command(epilog=_known_types())
@click.argument("event_type", metavar="TYPE", shell_complete=_complete)
@click.option(
    "--data",
    metavar="JSON|@FILE",
    callback=_json,
    help="Members of the event's object, in place of those of the sample. @- reads standard input.",
)
@click.option(
    "--url",
    metavar="URL",
    callback=_url,
    help="Deliver to a running server. Without a path, to that of the app's endpoint."
    "  [default: to the app itself, in this process]",
)
@click.option(
    "--times",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=1,
    show_default=True,
    help="Deliver the same event as often as this, one after the other.",
)
@click.option("--event-id", metavar="ID", help="Of the event.  [default: a new one]")
@click.option(
    "--secret",
    metavar="[SECRET]",
    prompt="Signing secret",
    prompt_required=False,
    hide_input=True,
    help="Sign with this one. Given without a value, it is asked for, and stays out of the shell's"
    " history.  [default: the newest of the app]",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Of the app's endpoint.  [default: the only one, or the one with the default name]",
)
@click.pass_context
def trigger(
    context: click.Context,
    event_type: str,
    data: t.Any,
    url: str | None,
    times: int,
    event_id: str | None,
    secret: str | None,
    name: str | None,
) -> None:
    """Deliver an event of TYPE, signed as Sangho would sign it.

    \b
        flask --app shop sangho trigger payment_intent.succeeded
        flask --app shop sangho trigger payment_intent.succeeded --times 3
        flask --app shop sangho trigger invoice.paid --data '{"amount_paid": 5000}'
        flask --app shop sangho trigger webhook.test --url http://127.0.0.1:5000

    The event carries a sample object, with what --data says. Types of one object tell of the same
    one: trigger invoice.created, then invoice.paid.

    The handlers run in earnest, on the app's database: the sample of a payment tells of order 1.
    Use it where you develop.

    Each answer is printed. The exit code is 1 if one of them is not a 2xx of the endpoint itself.
    """
    app = this_app()
    endpoint = find_endpoint(app) if name is None else endpoints(name)[0]
    event = _build(event_type, data, event_id)
    key = endpoint.config.secrets[0] if secret is None else secret.strip()
    deliver: c.Callable[[Event, str], Answer]

    if url is None:
        client = SanghoTestClient(app, name=endpoint.webhooks.name)
        target, deliver = client.path, functools.partial(to_app, client)
    else:
        target = _with_path(url, app, endpoint)
        deliver = functools.partial(to_server, target)

    delivery = Delivery(
        event=event,
        endpoint=endpoint,
        target=target,
        is_remote=url is not None,
        has_own_secret=secret is not None,
    )
    click.echo(f"{event.type} {event.id} to {target}")
    answers = []

    for _ in range(times):
        answers.append(deliver(event, key))
        click.echo(str(answers[-1]))

    for line in dict.fromkeys(hint(answer, delivery) for answer in answers):
        if line is not None:
            click.echo(line, err=True)

    context.exit(0 if all(answer.is_success for answer in answers) else 1)


def _build(event_type: str, data: t.Any, event_id: str | None) -> Event:
    """The event, its object merged from the sample and ``--data``."""
    known = event_type in SAMPLES

    if not known and data is None:
        hint = suggestion(event_type, with_prefixes=False)
        raise click.BadParameter(
            f"Sangho is not known to send {event_type!r}.{hint} If it does, give the event's object"
            " with --data.",
            param_hint="TYPE",
        )

    if known and data is not None and not isinstance(data, dict):
        raise click.BadParameter("Give a JSON object.", param_hint="--data")

    thing = {**sample(event_type), **(data or {})} if known else data
    fields = {} if event_id is None else {"id": event_id}

    try:
        return build_event(event_type, thing, **fields)
    except (PayloadError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _with_path(url: str, app: Flask, endpoint: Endpoint) -> str:
    """The URL with the path of the app's endpoint, unless it has one."""
    if urllib.parse.urlsplit(url).path.strip("/"):
        return url

    return urllib.parse.urljoin(url, urllib.parse.urlsplit(find_path(app, endpoint)).path)
