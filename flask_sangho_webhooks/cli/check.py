"""``flask sangho check``."""

from __future__ import annotations

import collections
import collections.abc as c
import dataclasses

import click
from flask import Flask, has_app_context
from flask.cli import ScriptInfo

from .._context import this_app
from ..checks import check_app
from ..checks.routes import urls
from ..errors import ConfigError
from ..extension import Endpoint, EXTENSION_KEY
from ..findings import Finding
from . import endpoints, json_option, name_option, NO_ENDPOINT, REGISTER, sangho, show_json

_COLORS = {"error": "red", "warning": "yellow", "advice": "cyan"}


@sangho.command(with_appcontext=False)
@click.option("--strict", is_flag=True, help="Exit with 1 after a warning, too.")
@json_option
@name_option
@click.pass_context
def check(context: click.Context, strict: bool, as_json: bool, name: str | None) -> None:
    """Say what is wrong with the app's endpoints, and how to fix it.

    Looks at the configuration, the routes, the handlers, the table or Redis, and the broker and
    its workers. It also says to which URL Sangho must post. Run it on the machine and with the
    environment of a deployment, before and after:

    \b
        flask --app shop sangho check
        flask --app shop sangho check --json | jq '.findings[].code'

    An error loses events, runs them twice or rejects them all; a warning may; advice is good to
    know. The exit code is 1 if there is an error. Nothing is written, and no secret is shown.
    """
    try:
        app = _load(context)
    except ConfigError as error:
        _report([_unloaded(error)], [], strict, as_json)
        return

    with app.app_context():
        if not app.extensions.get(EXTENSION_KEY):
            _report([_no_endpoint()], [], strict, as_json)
            return

        chosen = endpoints(name)
        places = [(e, urls(app, e)) for e in chosen]
        _report(check_app(app, chosen), places, strict, as_json)


def _load(context: click.Context) -> Flask:
    if has_app_context():
        return this_app()

    return context.ensure_object(ScriptInfo).load_app()


def _unloaded(error: ConfigError) -> Finding:
    return Finding(
        "config",
        "error",
        f"The app does not start: {error} The rest is checked when it starts.",
        "",  # the message says it
    )


def _no_endpoint() -> Finding:
    return Finding("no-endpoint", "error", f"{NO_ENDPOINT}.", REGISTER)


def _report(
    findings: list[Finding], places: list[tuple[Endpoint, list[str]]], strict: bool, as_json: bool
) -> None:
    """Print what was found, and exit with 1 if something is wrong."""
    levels = {finding.level for finding in findings}
    failed = "error" in levels or (strict and "warning" in levels)

    if as_json:
        show_json(
            {
                "ok": not failed,
                "endpoints": [{"name": e.webhooks.name, "urls": found} for e, found in places],
                "findings": [dataclasses.asdict(finding) for finding in findings],
            }
        )
    else:
        _show(findings, places)

    if failed:
        raise click.exceptions.Exit(1)


def _show(findings: list[Finding], places: list[tuple[Endpoint, list[str]]]) -> None:
    for endpoint, found in places:
        for url in found:
            click.echo(f"{endpoint.webhooks.name}: Sangho posts to {url}")

    for finding in findings:
        whose = f"{finding.endpoint}: " if finding.endpoint and len(places) > 1 else ""
        level = click.style(finding.level, fg=_COLORS[finding.level], bold=True)
        click.echo(f"\n{level} [{finding.code}] {whose}{finding.message}")

        if finding.fix:
            click.echo(f"    fix: {finding.fix}")

    click.echo(("\n" if findings else "") + _summary(finding.level for finding in findings))


def _summary(levels: c.Iterable[str]) -> str:
    counts = collections.Counter(levels)
    parts = [
        f"{counts[level]} {level}{'s' if counts[level] > 1 and level != 'advice' else ''}"
        for level in _COLORS
        if counts[level]
    ]
    return f"Found: {', '.join(parts)}." if parts else "Nothing is wrong."
