"""How the sessions of one dispatch work in the guard's transaction."""

from __future__ import annotations

import collections.abc as c
import contextvars
import functools
import re
import threading
import typing as t
import weakref

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
import sqlalchemy.orm as sa_orm

from ..errors import WebhookError
from ._transaction import begin_on_sqlite, ended, GuardTransaction
from ._transient import DEADLOCK, error_code


class Join:
    """What the sessions of one dispatch share.

    The first transaction of a session needs no savepoint. If it is rolled back, the guard's is,
    with nothing in it but the claim, and the event is claimed again before the next statement.
    That saves two statements in most dispatches. All later transactions are savepoints.

    :param factory: makes the sessions.
    :param claim_again: claims the event once more, in a transaction that it begins.
    """

    def __init__(
        self, factory: object, own: GuardTransaction, claim_again: c.Callable[[], None]
    ) -> None:
        self.factory = factory
        self.own = own
        self.connection = own.connection
        self.sessions: list[sa_orm.Session] = []
        self.needs_savepoint = False
        self.holds_more_than_claim = False

        # The database may have ended the transaction without anybody's knowledge.
        self.may_be_lost = False

        # It has, or a rollback has taken what another session had written.
        self.is_lost = False

        # A thread that a handler has started with its context may outlive the dispatch.
        self.is_over = False

        self._claim_again = claim_again
        self._was_rolled_back = False
        self._open: list[t.Any] = []  # sessions in a transaction, in the order of its beginning

        outer = current_join()
        self._outer = outer if outer is not None and outer.connection is self.connection else None
        _watch(own.connection.engine)

        # SQLite in memory: every other use of the engine ends with a rollback of this connection.
        if isinstance(own.connection.engine.pool, sa.StaticPool):
            self.distrust()

    def enter(self, session: t.Any) -> None:
        """Called before each statement of a session."""
        if self.is_over:
            return

        self.ensure_claimed()

        if session.sangho_in_savepoint is None:
            session.sangho_in_savepoint = self.needs_savepoint
            session.join_transaction_mode = (
                "create_savepoint" if self.needs_savepoint else "rollback_only"
            )
            self.needs_savepoint = True

        if session not in self._open:
            self._open.append(session)

        # What it writes now is in the savepoints of those that began later.
        for later in self._open[self._open.index(session) + 1 :]:
            later.sangho_holds_others = True

    def leave(self, session: t.Any) -> None:
        """Called when a transaction of a session has ended, in whichever way."""
        in_savepoint, committed = session.sangho_in_savepoint, session.sangho_committed
        holds_others = session.sangho_holds_others
        session.sangho_in_savepoint, session.sangho_committed = None, False
        session.sangho_holds_others = False

        if session in self._open:
            holds_others |= not in_savepoint and session is not self._open[-1]
            self._open.remove(session)

        if in_savepoint is None:
            return

        if committed:
            self.holds_more_than_claim = True
        elif holds_others:
            self.is_lost = True
        elif not in_savepoint:
            self.is_lost = False
            self.own.roll_back()  # which close() and remove() have not done
            self._was_rolled_back = True

    def ensure_claimed(self) -> None:
        """Claim the event again if a handler's rollback has undone the claim as well.

        :raises WebhookError: if something else has undone it, or if more than it is undone.
        """
        if self.is_lost:
            raise ended()

        if self.own.current.is_active:
            return

        if self.holds_more_than_claim or not self._was_rolled_back:
            raise ended()

        self._claim_again()
        self._was_rolled_back = False

    def lose(self) -> None:
        """Called when the database has ended the transaction."""
        self.is_lost = True

        if self._outer is not None:
            self._outer.lose()

    def refuse_savepoint(self) -> None:
        """Called when a session has committed without a savepoint of its own. One that a handler
        has made on the connection is still there, and its rollback would undo what is committed.
        """
        own = self.own.current
        expected = own if isinstance(own, sa.NestedTransaction) else None

        if len(self._open) == 1 and self.connection.get_nested_transaction() is not expected:
            raise WebhookError(
                "A handler must end the savepoint that it has made on the connection before it"
                " commits. Use db.session.begin_nested()."
            )

    def distrust(self) -> None:
        """Called when a statement has failed, and before a handler gets the connection itself."""
        if self._outer is not None:
            self._outer.distrust()

        if not self.may_be_lost:
            self.may_be_lost = True
            sa.event.listen(self.connection, "commit", _refuse_commit)

            if self.connection.dialect.name == "sqlite":
                sa.event.listen(self.connection, "savepoint", begin_on_sqlite)


# Per dispatch, not per thread: the registry of db.session is shared by all threads, and an async
# handler runs in a thread of its own with a copy of this context.
current: contextvars.ContextVar[Join | None] = contextvars.ContextVar("sangho_join", default=None)


def current_join() -> Join | None:
    join = current.get()
    return None if join is None or join.is_over else join


_watch_lock = threading.Lock()
_watched: weakref.WeakSet[sa.Engine] = weakref.WeakSet()


def _watch(engine: sa.Engine) -> None:
    if engine in _watched:
        return

    with _watch_lock:
        if engine not in _watched:
            sa.event.listen(engine, "handle_error", note_error)
            _watched.add(engine)


def note_error(context: sa.ExceptionContext) -> None:
    """Listens to the errors of every engine that a dispatch has used."""
    join = current_join()

    if join is None or join.connection is not context.connection:
        return

    join.distrust()

    # Looking for the claim would not do: another run may have recorded the event since.
    if _has_ended_transaction(join.connection, context.sqlalchemy_exception):
        join.lose()


def _has_ended_transaction(connection: sa.Connection, error: object) -> bool:
    if connection.invalidated or connection.closed:
        return False

    if connection.dialect.name == "sqlite":
        driver = connection.connection.dbapi_connection
        return getattr(driver, "in_transaction", True) is False

    return isinstance(error, sa_exc.DBAPIError) and error_code(error) == DEADLOCK


def _refuse_commit(connection: sa.Connection) -> None:
    """``db.session.connection().commit()`` would commit the claim before the handlers are done."""
    join = current_join()

    if join is not None and join.connection is connection:
        raise WebhookError(
            "A handler must not commit the connection that its event is recorded on. Call"
            " db.session.commit()."
        )


@functools.cache
def joined_class(base: type[t.Any]) -> type[t.Any]:
    """A subclass of the app's own session class whose binds lead to the guard's connection."""

    class JoinedSession(base):  # type: ignore[misc]
        sangho_join: Join
        sangho_in_savepoint: bool | None = None  # None: not in the guard's transaction
        sangho_committed = False
        sangho_holds_others = False

        def get_bind(self, *args: t.Any, **kwargs: t.Any) -> sa.Engine | sa.Connection:
            bind: sa.Engine | sa.Connection = super().get_bind(*args, **kwargs)
            join = self.sangho_join

            # Another database (SQLALCHEMY_BINDS), or that of another app, keeps its own.
            if bind is not (own := join.connection.engine) and bind.engine.pool is not own.pool:
                return bind

            if not any(args) and kwargs.get("mapper") is None and kwargs.get("clause") is None:
                join.distrust()  # SQLAlchemy itself says what it is for

            join.enter(self)
            return join.connection

        def connection(self, *args: t.Any, **kwargs: t.Any) -> sa.Connection:
            connection: sa.Connection = super().connection(*args, **kwargs)

            if connection is self.sangho_join.connection:
                self.sangho_join.distrust()

            return connection

    sa.event.listen(JoinedSession, "do_orm_execute", _refuse_end)
    sa.event.listen(JoinedSession, "after_commit", _note_commit)
    sa.event.listen(JoinedSession, "after_transaction_end", _note_end)
    return JoinedSession


def _refuse_end(execution: sa_orm.ORMExecuteState) -> None:
    """COMMIT as a text would commit the claim before the handlers are done, ROLLBACK would undo it,
    and BEGIN does either, by the database. SQLAlchemy notices none of them.
    """
    statement = execution.statement

    if isinstance(statement, sa.TextClause) and _ends_transaction(statement.text):
        raise WebhookError(
            "A handler must not begin or end a transaction with a text of SQL. Call"
            " db.session.commit() or db.session.rollback()."
        )


# But not ROLLBACK TO a savepoint.
_ends_transaction = re.compile(
    r"\s*(?:(?:commit|end|abort|begin|start\s+transaction)\b|rollback\b(?!.*\bto\b))",
    re.IGNORECASE | re.DOTALL,
).match


def _note_commit(session: t.Any) -> None:
    session.sangho_committed = session.get_nested_transaction() is None

    if session.sangho_committed and session.sangho_in_savepoint is False:
        session.sangho_join.refuse_savepoint()


def _note_end(session: t.Any, transaction: sa_orm.SessionTransaction) -> None:
    if transaction.parent is None:
        session.sangho_join.leave(session)
