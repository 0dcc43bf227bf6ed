"""What the shop sells, what was ordered, and the ledger of what was granted."""

# mypy: disable-error-code="name-defined, misc"

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask_sqlalchemy import SQLAlchemy

db = SQLAlchemy()


class Product(db.Model):
    __tablename__ = "products"
    __table_args__ = (sa.CheckConstraint("stock >= 0", name="ck_products_stock"),)

    name: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50), primary_key=True)
    stock: sa_orm.Mapped[int]


class Order(db.Model):
    __tablename__ = "orders"

    reference: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(20), primary_key=True)
    product_name: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.ForeignKey("products.name"))
    amount: sa_orm.Mapped[int]
    """In whole XAF."""

    status: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(10), default="open")

    product: sa_orm.Mapped[Product] = sa_orm.relationship()


class Grant(db.Model):
    """One line of the ledger.

    No unique key keeps an order from being granted twice: that is left to the webhooks, so that the
    ledger shows whether they do it.
    """

    __tablename__ = "grants"

    id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
    order_reference: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.ForeignKey("orders.reference"))
    event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50))
    granted_at: sa_orm.Mapped[dt.datetime] = sa_orm.mapped_column(server_default=sa.func.now())


def open_shop() -> None:
    """Create the tables that are missing, and put products and orders into empty ones."""
    with db.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            # Workers that start at the same time take turns.
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        db.metadata.create_all(connection)

        if connection.scalar(sa.select(sa.func.count()).select_from(Order)):
            return

        connection.execute(
            sa.insert(Product),
            [{"name": "solar lamp", "stock": 100}, {"name": "radio", "stock": 0}],
        )
        connection.execute(
            sa.insert(Order),
            [
                {"reference": f"A-{1000 + number}", "product_name": product, "amount": amount}
                for number, (product, amount) in enumerate(_ORDERS, start=1)
            ],
        )


_ORDERS = [("solar lamp", 5000)] * 3 + [("radio", 12000)] + [("solar lamp", 5000)] * 3
