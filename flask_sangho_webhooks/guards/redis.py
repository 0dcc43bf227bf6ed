"""The guard whose records live in Redis or Valkey."""

from __future__ import annotations

import collections.abc as c
import copy
import datetime as dt
import os
import time
import typing as t
import urllib.parse
import warnings

from ..config import check_redis_url, check_retention, Config, positive
from ..errors import ConfigError, Discard, EventInProgress, GuardUnavailable
from ..event import Event
from ._lease import DELETE, LeasedClaim, PROCESSED
from .base import Dispatch, MAX_BATCH_SIZE, Outcome, Progress

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.cluster import RedisCluster
    from redis.exceptions import RedisClusterException, RedisError
    from redis.retry import Retry
except ModuleNotFoundError as error:
    raise ConfigError(
        'RedisGuard needs the redis extra: pip install "flask-sangho-webhooks[redis]"'
    ) from error

if t.TYPE_CHECKING:
    from ..findings import Finding

_TIMEOUT = 0.5
"""Seconds for a connection, and for a reply. A command is tried twice, each on a connection that
may have to be made: a Redis that is gone is known to be after 2 seconds at most."""

_PAUSES = (0.0,)
# No answer at all, or one that says that it cannot be done now: loading, read-only, out of memory.
_ERRORS = (RedisError, RedisClusterException, OSError)

_T = t.TypeVar("_T")


class RedisGuard:
    """Claims each event by setting a key that nobody else has set.

    ====================  ==========================  =======
    an event that is      has the value               for the
    ====================  ==========================  =======
    new, or has failed    (no key)
    being processed       ``processing:<token>``      lease
    processed             ``processed``               retention
    ====================  ==========================  =======

    What handlers do is outside the guard. An event whose process is killed runs again after the
    lease, and one whose handlers take longer than the lease may run twice at the same time. A run
    completes or releases the claim only if it finds its own token in the key:

    ======================================  ==================================
    first run                               second run
    ======================================  ==================================
    SET processing:A NX PX lease
    … handlers, longer than the lease …     (the key expires)
    \\                                       SET processing:B NX PX lease
    complete: not A's; warn, answer 503     … handlers …
    \\                                       complete: B's → processed
    ======================================  ==================================

    :param client: of redis-py, for Sentinel, a cluster or TLS with certificates of your own. Give
        it timeouts; it speaks with Valkey as well.
    :param url: of the server; by default from the configuration.
    :param lease: seconds after which a claim is void; by default from the configuration. Longer
        than the slowest handler takes.
    :param retention: ``timedelta`` or seconds; by default from the configuration.
    :param prefix: of the keys, ``<prefix><endpoint's name>:<event id>``. Apps that share a database
        of Redis and receive the same events need one each.
    :raises ConfigError: naming what cannot work.
    """

    client: t.Any

    def __init__(
        self,
        client: redis.Redis | RedisCluster | None = None,
        *,
        url: str | None = None,
        lease: float | None = None,
        retention: dt.timedelta | float | None = None,
        prefix: str = "sangho:webhook:",
    ) -> None:
        if client is not None:
            _check_client(client, url)

        self.client = client
        self.url = None if url is None else check_redis_url("url", url)
        self.lease = None if lease is None else positive("lease", lease)
        self.retention = None if retention is None else check_retention("retention", retention)
        self.prefix = prefix
        self.name: str | None = None
        self._key_prefix = ""
        self._execute: c.Callable[..., t.Any] | None = None

    def bind(self, config: Config) -> RedisGuard:
        bound = copy.copy(self)
        bound.name = config.name
        bound._key_prefix = f"{self.prefix}{urllib.parse.quote(config.name, safe='')}:"
        bound.lease = config.lease if self.lease is None else self.lease
        bound.retention = config.retention if self.retention is None else self.retention

        if bound.lease > bound.retention.total_seconds():
            raise ConfigError(
                f"The lease ({bound.lease:g} s) is longer than the retention ({bound.retention})."
                " It only has to be longer than the slowest handler takes."
            )

        if self.client is None:
            bound.client = _connect(config.redis_url if self.url is None else self.url)
            bound._execute = _Connections(bound.client.connection_pool).execute
        else:
            bound._execute = self.client.execute_command

        return bound

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        claim = LeasedClaim(self, event)

        if not claim.take():
            return Outcome.DUPLICATE

        outcome = Outcome.PROCESSED

        try:
            dispatch()
        except Discard:
            outcome = Outcome.DISCARDED
        except BaseException:
            claim.release()
            raise

        return claim.complete(outcome)

    def seen(self, event_id: str) -> bool:
        key = self.key(event_id)
        return self.ask(lambda: self.get(key)) == PROCESSED

    def forget(self, event_id: str) -> bool:
        key = self.key(event_id)
        found = self.ask(lambda: self.run(DELETE, key, PROCESSED))

        # A claim is no record: without it, the event would run twice at the same time.
        if found is not None and found != PROCESSED:
            raise EventInProgress

        return found is not None

    def cleanup(
        self,
        older_than: dt.timedelta,
        *,
        batch_size: int = MAX_BATCH_SIZE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete nothing: Redis itself drops each record at the end of its retention."""
        return 0

    def check(self, prefix: str) -> list[Finding]:
        """What is wrong with the server, which is only read."""
        from ._check_redis import check_redis

        return check_redis(self, prefix)

    def key(self, event_id: str) -> str:
        """The name of an event's key."""
        if self.name is None:
            raise ConfigError(
                "This RedisGuard belongs to no endpoint yet. Pass it to SanghoWebhooks(guard=…),"
                " and use webhooks.endpoint().guard in an app context."
            )

        return self._key_prefix + event_id

    def get(self, key: str) -> str | None:
        return self._command("GET", key)

    def run(self, script: str, key: str, *values: str | int) -> str | None:
        return self._command("EVAL", script, 1, key, *values)

    def _command(self, *arguments: str | int) -> str | None:
        assert self._execute is not None
        return _text(self._execute(*arguments))

    def ask(self, command: c.Callable[[], _T], pauses: c.Sequence[float] = _PAUSES) -> _T:
        """Repeat a command until it is answered.

        A lost reply leaves open whether the command was carried out. Every command of the guard
        can be repeated: it returns what it found.

        :param pauses: seconds before each further attempt.
        :raises GuardUnavailable: if there is no answer.
        """
        for pause in (*pauses, None):
            try:
                return command()
            except _ERRORS as error:
                if pause is None:
                    kind = type(error).__name__
                    raise GuardUnavailable(f"Redis is unreachable or refuses ({kind}).") from error

                time.sleep(pause)

        raise AssertionError


class _Connections:
    """Connections of a pool that are not given back to it after each command.

    With the pool, a command takes half as long again: for its measurements, and for a look whether
    the server has hung up, which :meth:`RedisGuard.ask` finds out by asking twice.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[redis.Redis] = []
        self._pid = os.getpid()

    def execute(self, *arguments: str | int) -> t.Any:
        if self._pid != os.getpid():
            # Forked: they are the parent's. Another thread that sees the new process must not see
            # the old list.
            self._idle = []
            self._pid = os.getpid()

        try:
            client: t.Any = self._idle.pop()
        except IndexError:
            client = redis.Redis(connection_pool=self._pool, single_connection_client=True)

        try:
            reply = client.execute_command(*arguments)
        except BaseException:
            # The reply may yet come, and would be taken for that to the next command.
            if client.connection is not None:
                client.connection.disconnect()

            client.close()
            # A server that hangs up does so on all. The pool looks before it lends one again.
            self._idle.clear()
            raise

        self._idle.append(client)
        return reply


def _connect(url: str) -> redis.Redis:
    # redis-py makes no connection before the first command, and after a fork makes new ones.
    try:
        return redis.Redis.from_url(
            url,
            socket_connect_timeout=_TIMEOUT,
            socket_timeout=_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Not chained, and the URL not shown: it may hold a password.
        raise ConfigError(
            "The URL of Redis is not valid. It looks like redis://host:6379/0, rediss://… for TLS"
            " or unix:///path."
        ) from None


def _check_client(client: object, url: str | None) -> None:
    if url is not None:
        raise ConfigError("Give RedisGuard a client or a URL, not both.")

    if not isinstance(client, (redis.Redis, RedisCluster)):
        # An asyncio client would answer every command with a coroutine, which is true.
        raise ConfigError(
            "RedisGuard needs a redis.Redis or redis.RedisCluster of redis-py, not"
            f" {type(client).__module__}.{type(client).__name__}."
        )

    pool = getattr(client, "connection_pool", None)

    if pool is not None and pool.connection_kwargs.get("socket_timeout") is None:
        warnings.warn(
            "The Redis client has no timeout: a server that does not answer would hold a worker for"
            " ever. Use redis.Redis(…, socket_timeout=0.5, socket_connect_timeout=0.5).",
            stacklevel=3,
        )


def _text(value: object) -> str | None:
    """A reply, whether or not the client decodes them."""
    return value.decode() if isinstance(value, bytes) else t.cast("str | None", value)
