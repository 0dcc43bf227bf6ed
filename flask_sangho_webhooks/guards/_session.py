"""Lets ``db.session`` take part in a transaction that is not its own."""

from __future__ import annotations

import collections.abc as c
import contextlib
import logging
import threading
import typing as t
import weakref

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm

from ..errors import GuardUnavailable, WebhookError
from ._join import current, current_join, Join, joined_class
from ._transaction import GuardTransaction
from ._transient import refuse_transient

logger = logging.getLogger("flask_sangho_webhooks")

ScopedSession = sa_orm.scoped_session[t.Any]

_FLUSHED = "sangho_flushed_in"
"""In ``Session.info``: a weak reference to the transaction of the last flush."""

_install_lock = threading.Lock()


class SessionFactory(sa_orm.sessionmaker[t.Any]):
    """Stands in for the sessionmaker behind ``db.session``.

    Outside a dispatch it makes the app's ordinary sessions. In one, it makes sessions that work in
    the guard's transaction: commit() in a handler does not commit the claim, and a claim that a
    rollback() or remove() has undone is made again (see :class:`.Join`).
    """

    def __init__(self, ordinary: sa_orm.sessionmaker[t.Any]) -> None:
        # Shared, not copied: db.session.configure() changes the options of both.
        self.kw = ordinary.kw
        self.class_ = ordinary.class_
        self._for_binds: tuple[dict[str, t.Any], t.Any] = ({}, None)

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
        join = current_join()

        if join is None or join.factory is not self:
            return super().__call__(**options)

        session = joined_class(t.cast(t.Any, self.class_))(
            **{**self.kw, **options, "twophase": False}
        )
        session.sangho_join = join
        join.sessions.append(session)
        return session

    def for_binds(self) -> t.Any:
        """A session to ask for its binds only. To make one takes longer than to ask it, so outside
        a dispatch it is kept until ``db.session.configure()`` has changed something.
        """
        if current_join() is not None:
            return self()

        options, session = self._for_binds

        if session is None or options != self.kw:
            session = super().__call__()
            self._for_binds = (dict(self.kw), session)

        return session


class Joined:
    """A context in which ``db.session`` works in the guard's transaction.

    :param factory: of ``db.session``.
    :param claim_again: claims the event once more, in a transaction that it begins.
    :raises WebhookError: if a session holds work at the end that nobody would commit.
    """

    def __init__(
        self,
        factory: SessionFactory,
        scoped: ScopedSession,
        own: GuardTransaction,
        claim_again: c.Callable[[], None],
    ) -> None:
        self.scoped = scoped
        self.join = Join(factory, own, claim_again)

    def __enter__(self) -> Join:
        self._token = current.set(self.join)
        return self.join

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            self._end()

        if kind is None:
            self.join.ensure_claimed()

    def _commit(self) -> None:
        # Any change of an object begins a session's transaction.
        begun = [session for session in self.join.sessions if session.in_transaction()]

        if begun and any(holds_work(session) for session in begun):
            raise WebhookError(
                "A handler has left work in a db.session of another scope than its own, where"
                " nobody commits it: an async handler with a 'scopefunc' that goes by threads,"
                " or a thread of the handler's own. Call db.session.commit() there."
            )

        # What statements of the Core have written, as for db.session itself. And a session that
        # has only read must not roll back what others have written.
        for session in begun:
            commit(session)

    def _end(self) -> None:
        registry = self.scoped.registry
        self.join.is_over = True
        current.reset(self._token)
        sessions = self.join.sessions

        if registry.has() and (session := registry()) not in sessions:
            sessions = [*sessions, session]

        registry.clear()

        for session in sessions:
            session.close()

        # A cycle of references would keep them all until the garbage collector comes.
        self.join.sessions.clear()


def is_joined(session: sa_orm.Session) -> bool:
    """Whether a session works in the transaction of a dispatch."""
    return hasattr(session, "sangho_join")


def commit(session: sa_orm.Session) -> None:
    """Commit, and leave the session's objects loaded: code that still holds one, such as a callback
    after the commit, can read it without a connection.

    :raises GuardUnavailable: if that meets a passing trouble of the database.
    """
    expire_on_commit, session.expire_on_commit = session.expire_on_commit, False

    try:
        session.commit()
    except sa_exc.SQLAlchemyError as error:
        refuse_transient(error)
        raise
    finally:
        session.expire_on_commit = expire_on_commit


def keep_readable() -> None:
    """Load what the handlers' own commits have expired: :func:`commit` spares only the last one,
    and a callback after the commit finds the sessions closed.
    """
    join = current_join()

    for session in () if join is None else join.sessions:
        for thing in list(session):
            state = sa.inspect(thing)

            if state.expired_attributes.intersection(state.mapper.column_attrs.keys()):
                with contextlib.suppress(sa_exc.InvalidRequestError):  # the row is gone
                    session.refresh(thing)


class SetAside:
    """The session that the request has used so far, out of ``db.session`` for a while."""

    def __init__(self, scoped: ScopedSession) -> None:
        self.registry = scoped.registry
        self.session: sa_orm.Session | None = None
        self.held_work = False
        self._changes: list[t.Any] = []

    def __enter__(self) -> SetAside:
        join = current_join()

        if join is not None:
            join.ensure_claimed()
            # What this dispatch records must outlast a rollback in the one around it.
            join.needs_savepoint = join.holds_more_than_claim = True

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

    A session that is joined itself, of the dispatch around this one, ends its transaction: a later
    rollback() of it must not reach into what this dispatch has recorded.
    """
    if is_joined(session):
        commit(session)
        return

    if not session.in_transaction() or holds_work(session):
        return

    try:
        commit(session)
    except (sa_exc.SQLAlchemyError, GuardUnavailable) as error:
        session.rollback()
        kind = type(error).__name__
        logger.warning("What a function before the event wrote could not be committed (%s).", kind)


def holds_work(session: sa_orm.Session) -> bool:
    """Whether the session has objects that are not flushed, or flushed but not committed."""
    if session.new or session.dirty or session.deleted:
        return True

    transaction = session.get_transaction()
    flushed = session.info.get(_FLUSHED)
    return transaction is not None and flushed is not None and flushed() is transaction


def _note_flush(session: sa_orm.Session, flush_context: object) -> None:
    """Flushed objects are only weakly referenced, so the session itself may have forgotten them."""
    session.info[_FLUSHED] = weakref.ref(t.cast(object, session.get_transaction()))
