"""What may be wrong with an app's endpoints. Looks only: nothing is written anywhere."""

from __future__ import annotations

import collections.abc as c
import dataclasses

from flask import Flask

from ..extension import Endpoint
from ..findings import Finding
from .configuration import check_configuration, check_keys, check_shared_secrets
from .handlers import check_handlers
from .routes import check_routes

_ORDER = ("error", "warning", "advice")


def check_app(app: Flask, endpoints: c.Sequence[Endpoint]) -> list[Finding]:
    """Check the endpoints of an app, in its context.

    A guard or queue with a method ``check(prefix)`` is asked, too.

    :param endpoints: those to check, of all that the app has.
    :return: what is wrong, the worst first.
    """
    findings = [*check_keys(app), *check_shared_secrets(app)]

    for endpoint in endpoints:
        name = endpoint.webhooks.name
        findings += [dataclasses.replace(f, endpoint=name) for f in _check(app, endpoint)]

    return sorted(findings, key=lambda finding: _ORDER.index(finding.level))


def _check(app: Flask, endpoint: Endpoint) -> c.Iterator[Finding]:
    prefix = endpoint.webhooks.config_prefix
    yield from check_configuration(endpoint)
    yield from check_routes(app, endpoint)
    yield from check_handlers(endpoint)

    for part in (endpoint.guard, endpoint.webhooks.queue):
        check = getattr(part, "check", None)

        if check is not None:
            yield from check(prefix)
