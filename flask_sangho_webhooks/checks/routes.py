"""Whether deliveries reach the endpoint, and where."""

from __future__ import annotations

import collections.abc as c
import os

from flask import Flask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect, Rule

from ..extension import Endpoint
from ..findings import Finding


def check_routes(app: Flask, endpoint: Endpoint) -> c.Iterator[Finding]:
    """What stands between Sangho and the endpoint."""
    rules = _rules(app, endpoint)

    if not rules:
        yield Finding(
            "not-registered",
            "warning",
            "The blueprint is not registered: this process takes no deliveries. A worker need not.",
            "app.register_blueprint(webhooks.blueprint)",
        )
        return

    for rule in rules:
        yield from _check_match(app, endpoint, rule)
        yield from _check_csrf(app, rule)

    yield from _check_content_length(app, endpoint)


def urls(app: Flask, endpoint: Endpoint) -> list[str]:
    """Where Sangho must post. Without ``SERVER_NAME``, an app does not know its own host."""
    return [_url(app, rule) for rule in _rules(app, endpoint)]


def _rules(app: Flask, endpoint: Endpoint) -> list[Rule]:
    """The route, once for each time that the blueprint is registered."""
    names = [name for name, b in app.blueprints.items() if b is endpoint.webhooks.blueprint]
    wanted = {f"{name}.receive" for name in names}
    return [rule for rule in app.url_map.iter_rules() if rule.endpoint in wanted]


def _url(app: Flask, rule: Rule) -> str:
    server = app.config["SERVER_NAME"]
    scheme = app.config["PREFERRED_URL_SCHEME"] if server else "https"
    host = rule.host or server or "<your host>"

    if rule.subdomain:
        host = f"{rule.subdomain}.{host}"

    root = app.config["APPLICATION_ROOT"].strip("/") or os.environ.get("SCRIPT_NAME", "").strip("/")
    return f"{scheme}://{host}{'/' if root else ''}{root}{rule.rule}"


def _check_match(app: Flask, endpoint: Endpoint, rule: Rule) -> c.Iterator[Finding]:
    if rule.arguments or rule.host or rule.subdomain:
        return

    try:
        matched, _ = app.url_map.bind("localhost").match(rule.rule, "POST")
    except (HTTPException, RequestRedirect):
        matched = None

    if matched != rule.endpoint and matched in {r.endpoint for r in _rules(app, endpoint)}:
        yield Finding(
            "registered-twice",
            "advice",
            f"The blueprint is registered twice at {rule.rule!r}.",
            "Register it once.",
        )
    elif matched != rule.endpoint:
        taker = (
            "A redirect or an error"
            if matched is None
            else f"Another view of the app, {matched!r},"
        )
        yield Finding(
            "path-taken",
            "error",
            f"{taker} takes deliveries to {rule.rule!r}.",
            "Give the endpoint a path of its own: SanghoWebhooks(db, path=…), or url_prefix=… where"
            " the blueprint is registered.",
        )


def _check_csrf(app: Flask, rule: Rule) -> c.Iterator[Finding]:
    """Let Flask-WTF say of an unsigned, empty delivery what it would say of any."""
    hooks = [f for f in app.before_request_funcs.get(None, ()) if _is_of_flask_wtf(f)]

    if not hooks or rule.arguments or rule.host or rule.subdomain:
        return

    with app.test_request_context(rule.rule, method="POST"):
        # The endpoint's own, which makes it exempt.
        for prepare in app.url_value_preprocessors.get(rule.endpoint.rpartition(".")[0], ()):
            prepare(rule.endpoint, {})

        try:
            refused = any(hook() is not None for hook in hooks)
        except HTTPException:
            refused = True

    if refused:
        yield Finding(
            "csrf",
            "error",
            "Flask-WTF asks deliveries for a CSRF token; they carry a signature in its place. This"
            " version of it does not see that the endpoint is exempt.",
            "csrf.exempt(webhooks.blueprint)",
        )


def _is_of_flask_wtf(function: object) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("flask_wtf")


def _check_content_length(app: Flask, endpoint: Endpoint) -> c.Iterator[Finding]:
    limit = app.config["MAX_CONTENT_LENGTH"]
    needed = endpoint.config.max_body

    if limit is not None and limit < needed:
        yield Finding(
            "max-content-length",
            "advice",
            f"'MAX_CONTENT_LENGTH' is {limit}, and a delivery may have {needed} bytes. That does no"
            " harm here: the endpoint has a limit of its own. It does where a proxy in front has"
            " the limit of the app.",
            f"In nginx: location … {{ client_max_body_size {needed}; }}",
        )
