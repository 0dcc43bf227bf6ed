"""The guard whose records live in the app's own database."""

from __future__ import annotations

import collections.abc as c
import contextlib
import copy
import datetime as dt
import functools
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from flask_sqlalchemy import SQLAlchemy

from ..config import Config
from ..errors import ConfigError, Discard, EventInProgress
from ..event import Event
from ..models import default_model, table_of
from ._claim import Claim, claim
from ._cleanup import Cleanup
from ._conflict import is_recorded
from ._database import find_database, UnknownDatabase
from ._session import Joined, SessionFactory, SetAside
from ._transaction import ended, GuardTransaction
from ._transient import refuse_transient, unavailable
from .base import Dispatch, MAX_BATCH_SIZE, Outcome, Progress, Record

if t.TYPE_CHECKING:
    from ..findings import Finding


class SQLGuard:
    """Claims each event by inserting its id, in the transaction that the handlers write in.

    Everything that handlers write through ``db.session`` commits together with the id, or not at
    all. Other databases (``SQLALCHEMY_BINDS``) and what handlers do elsewhere are outside.

    :param db: the app's Flask-SQLAlchemy object.
    :param model: a model with :class:`.ProcessedWebhookEventMixin`; by default that of the table
        ``processed_webhook_events``.
    :param lock_timeout: seconds to wait for a lock of the database; by default from the
        configuration.
    """

    def __init__(
        self,
        db: SQLAlchemy,
        model: type[t.Any] | None = None,
        *,
        lock_timeout: float | None = None,
    ) -> None:
        self.db = db
        self.model = default_model(db) if model is None else model
        self.table = table_of(self.model)
        self.lock_timeout = lock_timeout
        SessionFactory.install(db.session)

    def bind(self, config: Config) -> SQLGuard:
        """This guard with what its constructor left open taken from an app's configuration."""
        if self.lock_timeout is not None:
            return self

        bound = copy.copy(self)
        bound.lock_timeout = config.lock_timeout
        return bound

    def once(self, event: Event, dispatch: Dispatch) -> Outcome:
        scoped = self.db.session
        factory = SessionFactory.install(scoped)

        with SetAside(scoped) as aside:
            hint = " The request's db.session holds uncommitted work." if aside.held_work else ""

            with self._transaction(hint) as own:
                if self._claim(own, event, hint) is Claim.DUPLICATE:
                    return Outcome.DUPLICATE

                try:
                    claim_again = functools.partial(self._claim_again, own, event)

                    with Joined(factory, scoped, own, claim_again) as join:
                        dispatch()

                    aside.refuse_changes()
                except Discard:
                    return self._discard(own, event)

                with unavailable():
                    self._check_alive(own.connection, event, join.may_be_lost)
                    own.current.commit()

                return Outcome.PROCESSED

    def database(self) -> sa.Engine | sa.Connection:
        """Where the table lives in the current app. A connection where ours is a savepoint.

        :raises ConfigError: if the app does not have the database.
        """
        return find_database(self.db, self.model, self.table)

    def seen(self, event_id: str) -> bool:
        try:
            with self._begin() as connection:
                return is_recorded(connection, self.table, event_id)
        except (sa_exc.ProgrammingError, sa_exc.OperationalError):
            with self._begin() as connection:
                self._require_table(connection)

            raise

    def forget(self, event_id: str) -> bool:
        from ._records import forget

        with self._begin(read_committed=True) as connection:
            self._require_table(connection)
            return forget(connection, self.table, event_id, self.lock_timeout or 0)

    # -- one transaction ------------------------------------------------------

    @contextlib.contextmanager
    def _begin(self, *, read_committed: bool = False) -> c.Iterator[sa.Connection]:
        """A connection in a transaction that commits at the end of the block."""
        with (
            SetAside(self.db.session),
            unavailable(),
            self._transaction(read_committed=read_committed) as own,
        ):
            yield own.connection
            own.current.commit()

    def _transaction(self, hint: str = "", *, read_committed: bool = False) -> GuardTransaction:
        lock_timeout = self.lock_timeout or 0
        return GuardTransaction(self.database(), lock_timeout, hint, read_committed=read_committed)

    def _claim(self, own: GuardTransaction, event: Event, hint: str = "") -> Claim:
        connection = own.connection

        try:
            result = claim(connection, self.table, event, self.lock_timeout or 0)
        except sa_exc.SQLAlchemyError as error:
            refuse_transient(error, hint)

            if not isinstance(error, (sa_exc.ProgrammingError, sa_exc.OperationalError)):
                raise

            own.current.rollback()

            if self._has_table(connection):
                raise

            raise self._missing_table() from error

        if result is Claim.IN_PROGRESS:
            raise EventInProgress

        return result

    def _claim_again(self, own: GuardTransaction, event: Event) -> None:
        r"""Go on after a handler's rollback. Another delivery may have claimed the event since:

        ============================================  ===============================
        this delivery                                 another
        ============================================  ===============================
        BEGIN; claim: ours; handler …
        session.rollback() → ROLLBACK
        \                                             BEGIN; claim: ours; handler …
        next statement: BEGIN; claim: taken
        → EventInProgress, 503
        \                                             COMMIT
        ============================================  ===============================
        """
        with unavailable():
            own.begin_again()

        try:
            if self._claim(own, event) is Claim.DUPLICATE:
                raise EventInProgress("Another run of the event was faster after a rollback.")
        except BaseException:
            own.roll_back()
            raise

    def _check_alive(self, connection: sa.Connection, event: Event, may_be_lost: bool) -> None:
        """Make sure that the commit to come will commit the claim.

        PostgreSQL: after an error that a handler has swallowed, COMMIT is a ROLLBACK that raises
        nothing. The driver knows without a round trip. The others: together with an error, the
        server may have rolled the whole transaction back by itself (a deadlock, a full disk), and
        what handlers wrote after that is in a new one, without the claim. Reading the claim back
        shows it, on all of them also after a ROLLBACK that SQLAlchemy does not know of.
        """
        driver = connection.connection.dbapi_connection
        # Of psycopg, or of psycopg2.
        libpq = getattr(driver, "pgconn", None) or getattr(driver, "info", None)
        status = getattr(libpq, "transaction_status", None)

        if connection.dialect.name == "postgresql" and status is not None:
            is_aborted = int(status) != 2  # INTRANS, in libpq's numbering
        else:
            is_aborted = False

        if is_aborted or (may_be_lost and not is_recorded(connection, self.table, event.id)):
            raise ended()

    def _discard(self, own: GuardTransaction, event: Event) -> Outcome:
        """Undo everything that the handlers wrote, also what they committed, and record the event
        in a transaction of its own. Another delivery may claim it in between.
        """
        with unavailable():
            own.roll_back_all()

            own.begin_again()

            if self._claim(own, event) is Claim.DUPLICATE:
                return Outcome.DUPLICATE

            own.current.commit()

        return Outcome.DISCARDED

    # -- cleanup --------------------------------------------------------------

    def cleanup(
        self,
        older_than: dt.timedelta,
        *,
        batch_size: int = MAX_BATCH_SIZE,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        begin = functools.partial(self._begin, read_committed=True)

        with self._begin() as connection:
            self._require_table(connection)

        cleanup = Cleanup(self.table, begin, older_than, (self.lock_timeout or 0) / 2)
        return cleanup.count() if dry_run else cleanup.run(batch_size, progress)

    def records(self, pattern: str | None, limit: int) -> list[Record]:
        """The records of events whose type matches, the newest first.

        :param pattern: as for handlers; None for all.
        :raises GuardUnavailable: if the database cannot be asked.
        """
        from ._records import newest

        with self._begin() as connection:
            self._require_table(connection)
            return newest(connection, self.table, pattern, limit)

    def _require_table(self, connection: sa.Connection) -> None:
        if not self._has_table(connection):
            raise self._missing_table()

    def _has_table(self, connection: sa.Connection) -> bool:
        return sa.inspect(connection).has_table(self.table.name, schema=self.table.schema)

    def check(self, prefix: str) -> list[Finding]:
        """What is wrong with the database and the table, which are only read."""
        from ._check_sql import check_sql, unknown_database

        try:
            bind = self.database()
        except UnknownDatabase as error:
            return [unknown_database(error)]

        return check_sql(bind, self.table)

    def _missing_table(self) -> ConfigError:
        return ConfigError(
            f"The table {self.table.fullname!r} does not exist. Create it with 'flask sangho"
            " upgrade', or with 'flask db migrate' and 'flask db upgrade' if the app uses"
            " Flask-Migrate."
        )
