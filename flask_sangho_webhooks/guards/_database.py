"""Which database the table of an endpoint lives in."""

from __future__ import annotations

import functools
import typing as t

import sqlalchemy as sa
import sqlalchemy.exc as sa_exc
from flask import current_app
from flask_sqlalchemy import SQLAlchemy

from ..errors import ConfigError
from ._session import SessionFactory

REACH = (
    "Start it (for SQLite, make the folder), or correct SQLALCHEMY_DATABASE_URI (or the entry in"
    " SQLALCHEMY_BINDS)."
)
"""What to do about a database that cannot be reached."""


class UnknownDatabase(ConfigError):
    """The app does not have the database of an endpoint."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem} {fix}")
        self.problem = problem
        self.fix = fix


def find_database(db: SQLAlchemy, model: type[t.Any], table: sa.Table) -> sa.Engine | sa.Connection:
    """Where the table lives. A connection inside another dispatch, and in tests that bind the
    session to an outer transaction.

    :raises UnknownDatabase: if the app does not have it.
    """
    session = SessionFactory.install(db.session).for_binds()

    try:
        question = _question(table, model)  # type: ignore[arg-type]  # a class is hashable
        bind: sa.Engine | sa.Connection = session.get_bind(**question)
    except (RuntimeError, sa_exc.UnboundExecutionError) as error:
        unknown = _explain(db, error)

        if unknown is None:
            raise

        raise unknown from error

    return bind


@functools.cache
def _question(table: sa.Table, model: t.Any) -> dict[str, t.Any]:
    """Where the writes go: a session class of the app may send reads to another server."""
    return {"mapper": sa.inspect(model), "clause": sa.update(table)}


def _explain(db: SQLAlchemy, error: Exception) -> UnknownDatabase | None:
    registered = current_app.extensions.get("sqlalchemy")

    if isinstance(error, sa_exc.UnboundExecutionError):
        return UnknownDatabase(str(error), "Add the entry to SQLALCHEMY_BINDS.")

    if registered is None:
        return UnknownDatabase(
            "The app does not have the endpoint's database.", "Call db.init_app(app)."
        )

    if registered is not db:
        return UnknownDatabase(
            "The app has another database: SanghoWebhooks was given another SQLAlchemy"
            " object than the one that is set up on the app.",
            "Pass the same one: SanghoWebhooks(db).",
        )

    return None
