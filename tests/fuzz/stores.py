"""Targets with each guard, on real stores of their own."""

from __future__ import annotations

import collections.abc as c
import contextlib
import pathlib
import typing as t

import redis
import sqlalchemy as sa
from flask_sqlalchemy import SQLAlchemy

from flask_sangho_webhooks import Event, RedisGuard, SanghoWebhooks

from ..redis_support import valkey_server
from .target import Finding, Target


class SQLTarget(Target):
    """With the default guard, on SQLite."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._url = f"sqlite:///{folder / 'fuzz.sqlite3'}"
        super().__init__()

    def _make(self) -> SanghoWebhooks:
        self.app.config["SQLALCHEMY_DATABASE_URI"] = self._url
        db = SQLAlchemy(self.app)
        self._db = db
        self._effects = sa.Table("effects", db.metadata, sa.Column("event_id", sa.String(50)))
        webhooks = SanghoWebhooks(db)

        with self.app.app_context():
            sa.event.listen(db.engine, "connect", _do_not_wait_for_the_disk)
            db.create_all()
            sa.event.listen(db.engine, "before_cursor_execute", self.touched)

        assert webhooks.model is not None
        self._records_of_ids = webhooks.model.__table__
        return webhooks

    def _effect(self, event: Event) -> None:
        self._db.session.execute(sa.insert(self._effects).values(event_id=event.id))

    def _stored(self) -> tuple[list[str], list[str] | None]:
        with self.app.app_context(), self._db.engine.begin() as connection:
            ids = sorted(connection.scalars(sa.select(self._records_of_ids.c.event_id)))
            effects = sorted(connection.scalars(sa.select(self._effects.c.event_id)))
            connection.execute(sa.delete(self._records_of_ids))
            connection.execute(sa.delete(self._effects))

        return ids, effects

    def close(self) -> None:
        with self.app.app_context():
            self._db.engine.dispose()


def _do_not_wait_for_the_disk(connection: t.Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


class RedisTarget(Target):
    """With :class:`RedisGuard`, on a Valkey whose database is its own."""

    def __init__(self, url: str) -> None:
        self._observer: t.Any = redis.Redis.from_url(url, decode_responses=True)
        client = _Counted.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        self._client = t.cast(_Counted, client)
        super().__init__()
        self._client.target = self

    def _make(self) -> SanghoWebhooks:
        return SanghoWebhooks(guard=RedisGuard(self._client))

    def _stored(self) -> tuple[list[str], list[str] | None]:
        prefix = "sangho:webhook:sangho_webhooks:"
        keys = list(self._observer.scan_iter(count=1000))

        for key in keys:
            if self._observer.get(key) != "processed" or self._observer.ttl(key) <= 0:
                raise Finding(f"the key {key!r} is of no processed event, or never ends")

        self._observer.flushdb()
        return sorted(key.removeprefix(prefix) for key in keys), None

    def close(self) -> None:
        self._observer.close()
        self._client.close()


class _Counted(redis.Redis):
    target: Target | None = None

    def execute_command(self, *args: t.Any, **options: t.Any) -> t.Any:
        if self.target is not None:
            self.target.touched()

        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def target(guard: str, folder: pathlib.Path) -> c.Iterator[Target]:
    """A target with a guard, ``sql`` or ``redis``, and a store of its own."""
    with contextlib.ExitStack() as stack:
        if guard == "sql":
            target: Target = SQLTarget(folder)
        else:
            server = stack.enter_context(valkey_server())
            target = RedisTarget(f"{server.connection_url}/0")

        stack.callback(target.close)
        stack.enter_context(target.watch())
        yield target
