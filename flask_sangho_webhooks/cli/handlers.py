"""``flask sangho handlers``."""

from __future__ import annotations

import functools
import inspect
import os
import types
import typing as t

import click

from ..errors import PayloadError
from ..event import Event
from ..extension import Endpoint
from ..registry import Handler, is_known, suggestion
from . import endpoints, json_option, name_option, sangho, show_json, show_table


def _event_type(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    if value is None:
        return None

    try:
        Event(id="evt", type=value)
    except PayloadError as error:
        raise click.BadParameter(f"{value!r} is not the type of an event. {error}") from error

    if "*" in value:
        raise click.BadParameter(f"{value!r} is not the type of an event, but of several.")

    return value


@sangho.command()
@click.argument("event_type", metavar="[TYPE]", required=False, callback=_event_type)
@json_option
@name_option
def handlers(event_type: str | None, as_json: bool, name: str | None) -> None:
    """List the handlers, or those that an event of a TYPE runs.

    They are shown in the order in which they run. An event runs each handler whose pattern it
    matches, all of them as one unit: if one fails, the effects of all are rolled back.

    \b
        flask --app shop sangho handlers
        flask --app shop sangho handlers payment_intent.succeeded

    A handler that is missing here belongs to a module that nothing imports.
    """
    rows = [
        _describe(endpoint, handler)
        for endpoint in endpoints(name)
        for handler in endpoint.webhooks.handlers
        if event_type is None or handler.matches(event_type)
    ]

    if as_json:
        show_json(rows)
        return

    several = len({row["endpoint"] for row in rows}) > 1
    show_table([_row(row, several) for row in rows])

    if not rows:
        click.echo(_nothing(event_type))

    if event_type is not None and not is_known(event_type):
        hint = suggestion(event_type, with_prefixes=False)
        click.echo(f"Sangho is not known to send {event_type!r}.{hint}", err=True)


def _nothing(event_type: str | None) -> str:
    if event_type is None:
        return (
            "There are no handlers. Decorate a function, @webhooks.on('payment_intent.succeeded'),"
            " and import its module where the app is made."
        )

    return (
        f"No handler runs for {event_type!r}. Sangho's delivery is answered 200, and nothing is"
        " recorded."
    )


def _row(handler: dict[str, t.Any], with_endpoint: bool) -> tuple[str, ...]:
    kind = "async" if handler["async"] else ""
    row = (", ".join(handler["patterns"]), handler["function"], handler["source"] or "", kind)
    return (handler["endpoint"], *row) if with_endpoint else row


def _describe(endpoint: Endpoint, handler: Handler) -> dict[str, t.Any]:
    function = _innermost(handler.function)
    return {
        "endpoint": endpoint.webhooks.name,
        "patterns": handler.patterns,
        "function": f"{function.__module__}:{function.__qualname__}",
        "source": _source(function),
        "async": handler.is_async,
    }


def _innermost(function: t.Any) -> t.Any:
    """What a person has written: the function inside partials and decorators, or a class."""
    while isinstance(function, functools.partial):
        function = function.func

    function = inspect.unwrap(function)
    return function if hasattr(function, "__qualname__") else type(function)


def _source(function: t.Any) -> str | None:
    """The file, relative if it is below the working directory, and the line."""
    code = getattr(function, "__code__", None)

    if isinstance(code, types.CodeType):
        path, line = code.co_filename, code.co_firstlineno
    else:
        try:
            path = inspect.getsourcefile(function) or ""
            line = inspect.getsourcelines(function)[1]
        except (OSError, TypeError):  # typed in, or written in C
            return None

    relative = os.path.relpath(path)
    return f"{path if relative.startswith(os.pardir) else relative}:{line}"
