"""Lets ``db.session`` take part in a transaction that is not its own."""

from __future__ import annotations

import collections.abc as c
import contextlib
import contextvars
import functools
import threading
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm

ScopedSession = sa_orm.scoped_session[t.Any]

_install_lock = threading.Lock()

_FLUSHED = "sangho_flushed_in"
"""In ``Session.info``: the transaction of the last flush."""


class _Join(t.NamedTuple):
    """The connection that sessions of one dispatch work on."""

    factory: SessionFactory
    connection: sa.Connection


# Per dispatch, not per thread: the registry of db.session is shared by all threads, and an async
# handler runs in a thread of its own with a copy of this context.
_join: contextvars.ContextVar[_Join | None] = contextvars.ContextVar("sangho_join", default=None)


class SessionFactory:
    """Stands in for the ``createfunc`` of the registry behind ``db.session``.

    Outside a dispatch it makes the app's ordinary sessions. In one, it makes sessions that work in
    savepoints on the guard's connection, so that commit(), rollback() and remove() in a handler
    reach those savepoints and never the guard's transaction.
    """

    def __init__(self, scoped: ScopedSession) -> None:
        self.ordinary: c.Callable[[], sa_orm.Session] = scoped.registry.createfunc
        self.maker = scoped.session_factory

    @classmethod
    def install(cls, scoped: ScopedSession) -> SessionFactory:
        """Put a factory before ``db.session``, unless there is one.

        Called at start-up, and again in each dispatch for those who replace ``db.session``, as
        test recipes do.
        """
        with _install_lock:
            factory = scoped.registry.createfunc

            if not isinstance(factory, cls):
                factory = scoped.registry.createfunc = cls(scoped)
                sa.event.listen(scoped.session_factory, "after_flush", _note_flush)

        return factory

    def __call__(self) -> sa_orm.Session:
        join = _join.get()

        if join is None or join.factory is not self:
            return self.ordinary()

        options = {
            **self.maker.kw,
            "join_transaction_mode": "create_savepoint",
            "twophase": False,
        }
        session = _joined_class(t.cast(t.Any, self.maker.class_))(**options)
        session.sangho_connection = join.connection
        return t.cast(sa_orm.Session, session)

    @contextlib.contextmanager
    def joined(self, scoped: ScopedSession, connection: sa.Connection) -> c.Iterator[None]:
        """Let ``db.session`` work on ``connection`` until the block ends. What a joined session
        has not committed by then is rolled back.
        """
        token = _join.set(_Join(self, connection))

        try:
            yield
        finally:
            try:
                scoped.remove()
            finally:
                _join.reset(token)


@functools.cache
def _joined_class(base: type[t.Any]) -> type[t.Any]:
    """A subclass of the app's own session class whose binds lead to the guard's connection."""

    class JoinedSession(base):  # type: ignore[misc]
        sangho_connection: sa.Connection

        def get_bind(self, *args: t.Any, **kwargs: t.Any) -> sa.Engine | sa.Connection:
            bind: sa.Engine | sa.Connection = super().get_bind(*args, **kwargs)
            connection = self.sangho_connection
            # Another database (SQLALCHEMY_BINDS), or that of another app, keeps its own.
            return connection if bind.engine.pool is connection.engine.pool else bind

    return JoinedSession


@contextlib.contextmanager
def set_aside(scoped: ScopedSession) -> c.Iterator[None]:
    """Take the session that the request has used so far out of ``db.session`` and put it back
    untouched when the block ends.
    """
    registry = scoped.registry
    previous = registry() if registry.has() else None

    if previous is not None:
        _release_connection(previous)
        registry.clear()

    try:
        yield
    finally:
        if previous is not None:
            registry.set(previous)


def _release_connection(session: sa_orm.Session) -> None:
    """End a transaction that holds nothing of value, so that one delivery uses one connection.

    A before_request hook that read a row leaves its session in a transaction, and its connection
    checked out. With N such requests on a pool of N, every one would wait for an N+1st connection
    to claim its event on. Work that is not committed yet is left alone: it is not ours to end.

    It is committed, not rolled back: SQLAlchemy does not know what statements of its Core have
    written, and a commit loses none of it.
    """
    if not session.in_transaction() or holds_work(session):
        return

    try:
        session.commit()
    except sa_exc.SQLAlchemyError:
        session.rollback()


def holds_work(session: sa_orm.Session) -> bool:
    """Whether the session has objects that are not flushed, or flushed but not committed."""
    if session.new or session.dirty or session.deleted:
        return True

    transaction = session.get_transaction()
    return transaction is not None and session.info.get(_FLUSHED) is transaction


def _note_flush(session: sa_orm.Session, flush_context: object) -> None:
    """Flushed objects are only weakly referenced, so the session itself may have forgotten them."""
    session.info[_FLUSHED] = session.get_transaction()
