"""The configuration of one endpoint in one app, read once."""

from __future__ import annotations

import collections.abc as c
import dataclasses
import datetime as dt
import difflib
import math
import os
import typing as t
import warnings

from .errors import ConfigError

MIN_RETENTION = dt.timedelta(hours=48)
"""Sangho redelivers for up to 48 hours; a record must live at least as long."""

DEFAULT_RETENTION = dt.timedelta(hours=72)
"""The guide's retention."""

MAX_RETENTION = dt.timedelta(days=3650)

MAX_LOCK_TIMEOUT = 3600
"""Seconds. Whoever waits for longer waits for ever."""

SECRET_PREFIX = "whsec_"

_QUOTES = "\"'"

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")

DEFAULTS: t.Final[dict[str, t.Any]] = {
    "SECRET": None,
    "TOLERANCE": 300,
    "RETENTION": DEFAULT_RETENTION,
    "MAX_BODY": 1024 * 1024,
    "RETRY_AFTER": 30,
    "LOCK_TIMEOUT": 2,
    "REDIS_URL": "redis://localhost:6379/0",
    "LEASE": 300,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What ``app.config`` says under one prefix. See :meth:`.SanghoWebhooks.init_app`."""

    name: str = "sangho_webhooks"
    """Of the endpoint, unique in its app."""

    secrets: tuple[str, ...] = dataclasses.field(repr=False)
    tolerance: float
    retention: dt.timedelta
    max_body: int
    retry_after: int
    lock_timeout: float
    redis_url: str = dataclasses.field(repr=False)
    lease: float

    @classmethod
    def load(
        cls, values: c.MutableMapping[str, t.Any], prefix: str, name: str = "sangho_webhooks"
    ) -> Config:
        """Read and check the configuration.

        :param values: ``app.config``.
        :param prefix: of the keys, such as ``SANGHO_WEBHOOK_``.
        :param name: of the endpoint.
        :raises ConfigError: naming the key, what is wrong and how to fix it.
        """
        for key, default in DEFAULTS.items():
            values.setdefault(prefix + key, default)

        def number(key: str, *, whole: bool = False) -> t.Any:
            return positive(prefix + key, values[prefix + key], whole=whole)

        return cls(
            name=name,
            secrets=_secrets(prefix + "SECRET", values[prefix + "SECRET"], values),
            tolerance=number("TOLERANCE"),
            retention=check_retention(prefix + "RETENTION", values[prefix + "RETENTION"]),
            max_body=number("MAX_BODY", whole=True),
            retry_after=number("RETRY_AFTER", whole=True),
            lock_timeout=min(number("LOCK_TIMEOUT"), MAX_LOCK_TIMEOUT),
            redis_url=check_redis_url(prefix + "REDIS_URL", values[prefix + "REDIS_URL"]),
            lease=number("LEASE"),
        )


def _secrets(key: str, value: object, others: c.Iterable[str]) -> tuple[str, ...]:
    """:param others: keys that are set, among which a misspelt one may be."""
    if value is None:
        similar = difflib.get_close_matches(key, set(others) - {key}, n=1, cutoff=0.85)
        hint = f" ({similar[0]!r} is, and nothing reads that.)" if similar else _unread(key)
        raise ConfigError(
            f"{key!r} is not set.{hint} Copy the endpoint's signing secret (whsec_…) from Sangho's"
            f" dashboard into app.config[{key!r}] or the environment variable FLASK_{key}."
        )

    entries = [value] if isinstance(value, (str, bytes)) else value

    if not isinstance(entries, (list, tuple)) or not entries:
        raise ConfigError(
            f"{key!r} must be a string or a list of strings that is not empty, newest secret first."
        )

    if entries is not value:
        return (_secret(repr(key), value),)

    return tuple(_secret(f"Entry {n} of {key!r}", entry) for n, entry in enumerate(entries))


def _unread(key: str) -> str:
    """A hint if the secret is in the environment, and the app does not look there."""
    call = "call app.config.from_prefixed_env() before the blueprint is registered."

    if f"FLASK_{key}" in os.environ:
        return f" The environment variable FLASK_{key} is set, and nothing reads it: {call}"

    if key in os.environ:
        return f" The environment variable {key} is set: name it FLASK_{key}, and {call}"

    return ""


def _secret(where: str, entry: object) -> str:
    """:param where: it was found, in messages."""
    if not isinstance(entry, str):
        raise ConfigError(f"{where} must be a string, not {type(entry).__name__}.")

    secret = entry.strip()

    if not secret.removeprefix(SECRET_PREFIX):
        raise ConfigError(
            f"{where} is empty. Copy the whole signing secret (whsec_…) from Sangho's dashboard."
        )

    if not _is_utf8(secret):
        raise ConfigError(f"{where} is not valid UTF-8 text. Copy the secret again.")

    if secret != entry:
        warnings.warn(
            f"{where} has white space around it, which was stripped. Remove it from where the"
            " secret is set.",
            stacklevel=2,
        )

    if is_quoted(secret):
        warnings.warn(
            f"{where} has quotes around it, which are used as a part of it. Remove them from where"
            " the secret is set.",
            stacklevel=2,
        )
    elif looks_like_list(secret):
        warnings.warn(
            f"{where} looks like a list, or has quotes or white space in it, and is used as it is."
            """ In the environment, a list is written as JSON: '["whsec_new", "whsec_old"]'.""",
            stacklevel=2,
        )

    return secret


def is_quoted(secret: str) -> bool:
    """Whether a secret has the quotes that a shell would have removed."""
    return secret.strip(_QUOTES) != secret


def looks_like_list(secret: str) -> bool:
    """Whether a secret has brackets, quotes, commas or white space in it; Sangho's have none."""
    return any(character in secret for character in f"[], \t\n{_QUOTES}")


def _is_utf8(secret: str) -> bool:
    try:
        secret.encode()
    except UnicodeEncodeError:
        return False

    return True


def positive(key: str, value: object, *, whole: bool = False) -> float:
    """Check a number that must be finite and greater than 0.

    :raises ConfigError: naming the key.
    """
    kinds: tuple[type, ...] = (int,) if whole else (int, float)

    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:  # type: ignore[operator]
        kind = "whole number" if whole else "number"
        raise ConfigError(f"{key!r} must be a {kind} greater than 0, not {value!r}.")

    return t.cast(float, value)


def check_retention(key: str, value: object) -> dt.timedelta:
    """Check a ``timedelta`` or seconds that records are kept.

    :raises ConfigError: naming the key, if it is less than 48 hours.
    """
    if not isinstance(value, dt.timedelta):
        try:
            value = dt.timedelta(seconds=positive(key, value))
        except OverflowError:
            raise ConfigError(f"{key!r} is too long: {value!r} seconds.") from None

    if value > MAX_RETENTION:
        raise ConfigError(f"{key!r} must be at most ten years, not {value}.")

    if value < MIN_RETENTION:
        raise ConfigError(
            f"{key!r} must be at least 48 hours, not {value}: Sangho redelivers for that long, and"
            " an event whose record is gone would be processed again. Use a timedelta or seconds."
        )

    return value


def check_redis_url(key: str, value: object) -> str:
    """Check the URL of a Redis.

    :raises ConfigError: naming the key.
    """
    if not isinstance(value, str) or not value.startswith(REDIS_SCHEMES):
        # The value is not shown: it may hold a password.
        raise ConfigError(f"{key!r} must be a URL that starts with {', '.join(REDIS_SCHEMES)}.")

    return value
