"""Secrets and other values in ``app.config``."""

from __future__ import annotations

import collections.abc as c
import difflib
import itertools
import re

from flask import Flask

from ..config import (
    DEFAULT_RETENTION,
    DEFAULTS,
    is_quoted,
    looks_like_list,
    SECRET_PREFIX,
)
from ..extension import Endpoint, EXTENSION_KEY
from ..findings import Finding

MIN_LENGTH = 16
"""Characters after the prefix. Fewer can be guessed, or are not all of the secret."""

MIN_VARIETY = 6
"""Different characters among them."""

_SEQUENCE = "0123456789abcdefghijklmnopqrstuvwxyz0123456789"
_EXAMPLE = re.compile(
    r"(?:[\W\d_]|x|abc|background|bar|baz|change|configuration|connect|dashboard|demo|dev"
    r"|development|docs|dummy|env|example|fake|foo|foreign|from|guessed|here|insert|is|it|key"
    r"|later|local|me|my|new|next|not|old|one|only|operations|other|password|pay|placeholder|prod"
    r"|production|quickstart|replace|sample|sangho|secret|shop|sign|signing|staging|table|test"
    r"|testing|the|this|three|todo|two|value|webhook|whsec|wrong|your)*"
)
_COPY = "Copy the endpoint's signing secret (whsec_…) from Sangho's dashboard into {key!r}."


def check_configuration(endpoint: Endpoint) -> c.Iterator[Finding]:
    """What one endpoint is configured with."""
    key = f"{endpoint.webhooks.config_prefix}SECRET"
    secrets = endpoint.config.secrets

    for position, secret in enumerate(secrets):
        where = f"Entry {position} of {key!r}" if len(secrets) > 1 else f"The secret in {key!r}"
        yield from check_secret(secret, where, _COPY.format(key=key))

    if len(set(secrets)) < len(secrets):
        yield Finding(
            "secret-twice",
            "warning",
            f"{key!r} has the same secret twice: a rotation that is not one.",
            f"app.config[{key!r}] = [the new secret, the old one]",
        )

    yield from _check_retention(endpoint)


def check_secret(secret: str, where: str, fix: str) -> c.Iterator[Finding]:
    """Whether a secret could be one of Sangho's.

    :param where: it was found, and ``fix`` what to do about it, in the findings.
    """
    own = secret.strip("\"'").removeprefix(SECRET_PREFIX).lower()
    is_list_like = looks_like_list(secret)

    if _EXAMPLE.fullmatch(own):
        yield Finding(
            "secret-example",
            "error",
            f"{where} is an example or a placeholder: whoever knows it can sign events.",
            fix,
        )
    elif len(own) < MIN_LENGTH or len(set(own)) < MIN_VARIETY or _is_sequence(own):
        yield Finding(
            "secret-weak",
            "error",
            f"{where} can be guessed, or is not all of it: after {SECRET_PREFIX!r} it has"
            f" {len(own)} characters, {len(set(own))} of them different.",
            fix,
        )
    elif not secret.startswith(SECRET_PREFIX) and not is_list_like:
        yield Finding(
            "secret-prefix",
            "warning",
            f"{where} does not begin with {SECRET_PREFIX!r}, which is part of the secret.",
            fix,
        )

    if is_quoted(secret):
        yield Finding(
            "secret-format",
            "error",
            f"{where} has quotes around it, which are used as a part of it.",
            "Remove the quotes from where it is set.",
        )
    elif is_list_like:
        yield Finding(
            "secret-format",
            "error",
            f"{where} has quotes, brackets or white space in it, and is used as it is.",
            """In the environment, write a list as JSON: '["whsec_new", "whsec_old"]'.""",
        )


def _is_sequence(own: str) -> bool:
    return own in _SEQUENCE or own[::-1] in _SEQUENCE


def check_shared_secrets(app: Flask) -> c.Iterator[Finding]:
    """Endpoints that accept each other's deliveries."""
    endpoints: dict[str, Endpoint] = app.extensions[EXTENSION_KEY]

    for one, other in itertools.combinations(endpoints.values(), 2):
        if set(one.config.secrets) & set(other.config.secrets):
            names = f"{one.webhooks.name!r} and {other.webhooks.name!r}"
            yield Finding(
                "secret-shared",
                "warning",
                f"The endpoints {names} have a secret in common. Each has its own in Sangho: one"
                " of them rejects its deliveries, or takes those of the other.",
                _COPY.format(key=f"{other.webhooks.config_prefix}SECRET"),
            )


def _check_retention(endpoint: Endpoint) -> c.Iterator[Finding]:
    key = f"{endpoint.webhooks.config_prefix}RETENTION"
    retention = getattr(endpoint.guard, "retention", None) or endpoint.config.retention

    if retention < DEFAULT_RETENTION:
        yield Finding(
            "retention-short",
            "warning",
            f"Records are kept for {retention.total_seconds() / 3600:g} hours; Sangho's guide says"
            " 72. Sangho redelivers for up to 48 hours, and a delivery may be delayed on its way.",
            f"app.config[{key!r}] = datetime.timedelta(hours=72)",
        )


def check_keys(app: Flask) -> c.Iterator[Finding]:
    """Keys that nothing reads, such as misspelt ones."""
    endpoints: dict[str, Endpoint] = app.extensions[EXTENSION_KEY]
    prefixes = {endpoint.webhooks.config_prefix for endpoint in endpoints.values()}
    known = {prefix + key for prefix in prefixes for key in DEFAULTS}

    for key in sorted(app.config.keys() - known):
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.85)

        if key.startswith(tuple(prefixes)) or (key.startswith("SANGHO_") and nearest):
            yield Finding(
                "config-unknown",
                "warning",
                f"Nothing reads app.config[{key!r}].",
                f"Did you mean {nearest[0]!r}?"
                if nearest
                else f"Remove it. What is read: {', '.join(sorted(known))}.",
            )
