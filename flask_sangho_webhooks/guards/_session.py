"""Lets ``db.session`` take part in a transaction that is not its own."""

from __future__ import annotations

import collections.abc as c
import contextlib
import contextvars
import functools
import logging
import threading
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm

from ..errors import WebhookError

logger = logging.getLogger("flask_sangho_webhooks")

ScopedSession = sa_orm.scoped_session[t.Any]

_FLUSHED = "sangho_flushed_in"
"""In ``Session.info``: the transaction of the last flush."""

_install_lock = threading.Lock()


class _Join:
    """The connection that the sessions of one dispatch work on."""

    def __init__(self, factory: SessionFactory, connection: sa.Connection) -> None:
        self.factory = factory
        self.connection = connection
        self.sessions: list[sa_orm.Session] = []
        # A thread that a handler has started with its context may outlive the dispatch.
        self.is_over = False


# Per dispatch, not per thread: the registry of db.session is shared by all threads, and an async
# handler runs in a thread of its own with a copy of this context.
_join: contextvars.ContextVar[_Join | None] = contextvars.ContextVar("sangho_join", default=None)


def _current_join() -> _Join | None:
    join = _join.get()
    return None if join is None or join.is_over else join


class SessionFactory(sa_orm.sessionmaker[t.Any]):
    """Stands in for the sessionmaker behind ``db.session``.

    Outside a dispatch it makes the app's ordinary sessions. In one, it makes sessions that work in
    savepoints on the guard's connection, so that commit(), rollback() and remove() in a handler
    reach those savepoints and never the guard's transaction.
    """

    def __init__(self, ordinary: sa_orm.sessionmaker[t.Any]) -> None:
        # Shared, not copied: db.session.configure() changes the options of both.
        self.kw = ordinary.kw
        self.class_ = ordinary.class_

    @classmethod
    def install(cls, scoped: ScopedSession) -> SessionFactory:
        """Put a factory behind ``db.session``, unless there is one.

        Called at start-up, and again in each dispatch for those who replace ``db.session``, as
        test recipes do.
        """
        factory = scoped.session_factory

        if isinstance(factory, cls):
            return factory

        with _install_lock:
            if not isinstance(scoped.session_factory, cls):
                factory = cls(scoped.session_factory)
                sa.event.listen(factory, "after_flush", _note_flush)
                scoped.session_factory = scoped.registry.createfunc = factory

            return scoped.session_factory

    def __call__(self, **options: t.Any) -> t.Any:
        join = _current_join()

        if join is None or join.factory is not self:
            return super().__call__(**options)

        options |= {"join_transaction_mode": "create_savepoint", "twophase": False}
        session = _joined_class(t.cast(t.Any, self.class_))(**{**self.kw, **options})
        session.sangho_connection = join.connection
        join.sessions.append(session)
        return session

    @contextlib.contextmanager
    def joined(self, scoped: ScopedSession, connection: sa.Connection) -> c.Iterator[None]:
        """Let ``db.session`` work on ``connection`` until the block ends.

        :raises WebhookError: if a session holds work then that nobody would commit.
        """
        join = _Join(self, connection)
        token = _join.set(join)
        sa.event.listen(connection, "commit", _refuse_commit)

        try:
            yield

            if any(holds_work(session) for session in join.sessions):
                raise WebhookError(
                    "A handler has left work in a db.session of another scope than its own, where"
                    " nobody commits it: an async handler with a 'scopefunc' that goes by threads,"
                    " or a thread of the handler's own. Call db.session.commit() there."
                )
        finally:
            join.is_over = True
            _join.reset(token)
            scoped.remove()

            for session in join.sessions:
                session.close()


def _refuse_commit(connection: sa.Connection) -> None:
    """``db.session.connection().commit()`` would commit the claim before the handlers are done."""
    join = _current_join()

    if join is not None and join.connection is connection:
        raise WebhookError(
            "A handler must not commit the connection that its event is recorded on. Call"
            " db.session.commit()."
        )


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


def is_joined(session: sa_orm.Session) -> bool:
    """Whether a session works in savepoints of a dispatch."""
    return hasattr(session, "sangho_connection")


def commit(session: sa_orm.Session) -> None:
    """Commit, and leave the objects of the session as they are: who holds one, such as a callback
    after the commit, can read on without a connection.
    """
    expire_on_commit, session.expire_on_commit = session.expire_on_commit, False

    try:
        session.commit()
    finally:
        session.expire_on_commit = expire_on_commit


class SetAside:
    """The session that the request has used so far, out of ``db.session`` for a while."""

    def __init__(self, scoped: ScopedSession) -> None:
        self.registry = scoped.registry
        self.session: sa_orm.Session | None = None
        self.held_work = False
        self._changes: list[t.Any] = []

    def __enter__(self) -> SetAside:
        if self.registry.has():
            self.session = self.registry()
            self.held_work = holds_work(self.session)
            _release_connection(self.session)
            self._changes = _changes(self.session)
            self.registry.clear()

        return self

    def __exit__(self, *_: object) -> None:
        if self.session is not None:
            self.registry.set(self.session)

    def refuse_changes(self) -> None:
        """Make sure that nothing was changed in the session meanwhile.

        :raises WebhookError: if a handler has changed an object of it: nobody would commit that.
        """
        session = self.session

        if session is not None and not is_joined(session) and _changes(session) != self._changes:
            raise WebhookError(
                "A handler has changed an object that was loaded before it ran, such as in a"
                " before_request function. It belongs to another session, which is not committed"
                " with the event. Load it again in the handler, with db.session.get()."
            )


def _changes(session: sa_orm.Session) -> list[t.Any]:
    return [session.new, session.dirty, session.deleted]


def _release_connection(session: sa_orm.Session) -> None:
    """End a transaction that holds nothing of value, so that one delivery uses one connection.

    A before_request hook that read a row leaves its session in a transaction, and its connection
    checked out. With N such requests on a pool of N, every one would wait for an N+1st connection
    to claim its event on. Work that is not committed yet is left alone: it is not ours to end.

    It is committed, not rolled back: SQLAlchemy does not know what statements of its Core have
    written, and a commit loses none of it.

    A session that is joined itself, of the dispatch around this one, always ends its savepoint: a
    later rollback() of it must not reach into what this dispatch has recorded.
    """
    if is_joined(session):
        commit(session)
        return

    if not session.in_transaction() or holds_work(session):
        return

    try:
        commit(session)
    except sa_exc.SQLAlchemyError as error:
        session.rollback()
        kind = type(error).__name__
        logger.warning("What a function before the event wrote could not be committed (%s).", kind)


def holds_work(session: sa_orm.Session) -> bool:
    """Whether the session has objects that are not flushed, or flushed but not committed."""
    if session.new or session.dirty or session.deleted:
        return True

    transaction = session.get_transaction()
    return transaction is not None and session.info.get(_FLUSHED) is transaction


def _note_flush(session: sa_orm.Session, flush_context: object) -> None:
    """Flushed objects are only weakly referenced, so the session itself may have forgotten them."""
    session.info[_FLUSHED] = session.get_transaction()
