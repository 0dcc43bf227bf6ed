"""The command line, ``flask sangho``. Only this package knows click."""

from __future__ import annotations

import importlib
import json
import typing as t

import click
import sqlalchemy.exc as sa_exc
from flask import current_app
from flask.cli import AppGroup

from ..errors import GuardUnavailable, WebhookError
from ..extension import Endpoint, EXTENSION_KEY
from ..guards import REACH

COMMANDS = ("check", "cleanup", "events", "forget", "handlers", "trigger", "upgrade")
"""Each is the name of a command and of the module in this package that adds it to the group."""

NO_ENDPOINT = "This app has no endpoint for Sangho's webhooks"
REGISTER = "app.register_blueprint(webhooks.blueprint), or in a worker webhooks.init_app(app)"


class _Group(AppGroup):
    """Imports a command when the command line asks for it: every app has the group, also one that
    only serves requests.
    """

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*COMMANDS, *super().list_commands(context)})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            importlib.import_module(f".{name}", __name__)

        return super().get_command(context, name)

    def invoke(self, context: click.Context) -> t.Any:
        try:
            return super().invoke(context)
        except WebhookError as error:
            of_database = isinstance(error.__cause__, sa_exc.SQLAlchemyError)
            advice = f" {REACH}" if of_database and isinstance(error, GuardUnavailable) else ""
            raise click.ClickException(f"{error}{advice}") from error


sangho = _Group("sangho", help="Set up, watch and repair Sangho's webhooks.")

name_option = click.option("--name", help="Of this endpoint only.  [default: all of the app]")
json_option = click.option("as_json", "--json", is_flag=True, help="Print JSON, for a program.")


def endpoints(name: str | None) -> list[Endpoint]:
    """The endpoint of a name, or all of the app.

    :raises click.ClickException: if there is none.
    """
    found: dict[str, Endpoint] = current_app.extensions.get(EXTENSION_KEY, {})

    if not found:
        raise click.ClickException(f"{NO_ENDPOINT}: {REGISTER}")

    if name is None:
        return list(found.values())

    if name not in found:
        raise click.BadParameter(
            f"No endpoint is named {name!r}; there is {', '.join(sorted(found))}.",
            param_hint="--name",
        )

    return [found[name]]


def show_table(rows: list[tuple[str, ...]]) -> None:
    """Print rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    for row in rows:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
