"""What the buttons of the page play: here the shop is Sangho too, and delivers to itself over HTTP.

For the demonstration only. In your app Sangho does this, and nothing of it is needed.
"""

# mypy: disable-error-code="name-defined, misc"

from __future__ import annotations

import collections.abc as c
import concurrent.futures
import dataclasses
import datetime as dt
import threading
import time

import sqlalchemy as sa
import sqlalchemy.orm as sa_orm
from flask import current_app, Flask

from flask_sangho_webhooks.testing import sign

from .delivery import Endpoint, Payment, post
from .models import db, Grant, open_shop, Order, Product

EXAMPLE_SECRET = "whsec_example_shop_only"
"""Everybody can read it here. A real one comes from Sangho's dashboard, and is kept out of code."""

STOCK = 100

ATTEMPTS = 4
PAUSE = 1
"""Seconds until a delivery that failed is repeated. The real Sangho waits longer."""

_choosing = threading.Lock()
"""Two who press a button at the same moment get different orders."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """A payment, and how it is delivered.

    :param times: deliveries at the same moment.
    :param product: what was ordered.
    :param stock: how many of it are left. With none, the handler fails; then there are more.
    :param is_tampered: whether somebody alters the event on the way.
    """

    title: str
    hint: str
    times: int = 1
    product: str = "solar lamp"
    stock: int = STOCK
    is_tampered: bool = False

    @property
    def grants(self) -> int:
        """What the ledger holds for the order in the end, if the promise is kept."""
        return 0 if self.is_tampered else 1


SCENES = {
    "pay": Scene("Pay", "One event, delivered once."),
    "five": Scene(
        "Pay, delivered five times at once", "Five deliveries of one event, in parallel.", times=5
    ),
    "tampered": Scene(
        "Tampered", "Somebody alters the amount after Sangho has signed it.", is_tampered=True
    ),
    "failing": Scene(
        "Handler fails once",
        "Out of stock at first. Sangho delivers again.",
        product="radio",
        stock=0,
    ),
}


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


class Delivery(db.Model):
    """One delivery, and what the sender was answered."""

    __tablename__ = "deliveries"

    id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
    scene: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(10))
    order_reference: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(20))
    event_id: sa_orm.Mapped[str] = sa_orm.mapped_column(sa.String(50))
    attempt: sa_orm.Mapped[int] = sa_orm.mapped_column(default=1)
    sent_at: sa_orm.Mapped[dt.datetime] = sa_orm.mapped_column(default=now)
    """UTC."""

    answer: sa_orm.Mapped[str | None] = sa_orm.mapped_column(sa.String(60))
    """None while there is none."""


@dataclasses.dataclass(frozen=True)
class Play:
    """A scene that is played on an order."""

    app: Flask
    name: str
    payment: Payment
    endpoint: Endpoint

    def run(self, delivery_ids: c.Sequence[int]) -> None:
        """Deliver everything at the same moment, and what fails again, as Sangho does."""
        at_once = threading.Barrier(len(delivery_ids))

        with concurrent.futures.ThreadPoolExecutor(len(delivery_ids)) as pool:
            for done in [pool.submit(self._deliver, number, at_once) for number in delivery_ids]:
                done.result()

    def _deliver(self, delivery_id: int | None, at_once: threading.Barrier) -> None:
        body = sent = self.payment.body

        if SCENES[self.name].is_tampered:
            sent = dataclasses.replace(self.payment, amount=1).body

        while delivery_id is not None:
            # Every attempt has a signature of its own: they expire.
            signature = sign(body, EXAMPLE_SECRET)
            answer = post(self.endpoint, self.payment.event_id, sent, signature, at_once)
            delivery_id = self._note(delivery_id, answer)

            if delivery_id is not None:
                at_once = threading.Barrier(1)
                time.sleep(PAUSE)

    def _note(self, delivery_id: int, answer: str) -> int | None:
        """Keep an answer.

        :return: the delivery that has to follow, if one has.
        """
        scene = SCENES[self.name]

        with self.app.app_context():
            delivery = db.session.get(Delivery, delivery_id)

            if delivery is None:  # the shop was reset meanwhile
                return None

            delivery.answer = answer
            following = None

            if not (answer.startswith("2") or scene.is_tampered or delivery.attempt == ATTEMPTS):
                following = _new_delivery(self.name, self.payment, delivery.attempt + 1)
                db.session.get_one(Product, scene.product).stock = STOCK

            db.session.commit()
            return following.id if following else None


def start(name: str, endpoint: Endpoint) -> None:
    """Play a scene in a thread of its own, since the server may have but one for requests.

    :param name: of the scene.
    :param endpoint: of this app.
    """
    scene = SCENES[name]

    with _choosing:
        order = _next_order(scene.product)
        order.product.stock = scene.stock
        payment = Payment(order.reference, order.amount)
        deliveries = [_new_delivery(name, payment) for _ in range(scene.times)]
        db.session.commit()

    app = current_app._get_current_object()  # type: ignore[attr-defined]
    play = Play(app, name, payment, endpoint)
    ids = [delivery.id for delivery in deliveries]
    threading.Thread(target=play.run, args=[ids], daemon=True).start()


def _next_order(product: str) -> Order:
    """An order that no scene was played on, a new one if need be."""
    orders = sa.select(Order).where(Order.product_name == product).order_by(Order.reference)
    played = sa.select(Delivery.order_reference)
    order = db.session.scalars(orders.where(Order.reference.not_in(played))).first()

    if order is None:
        like = db.session.scalars(orders.limit(1)).one()
        number = db.session.scalars(sa.select(sa.func.count()).select_from(Order)).one()
        order = Order(reference=f"A-{1001 + number}", product=like.product, amount=like.amount)
        db.session.add(order)

    return order


def _new_delivery(name: str, payment: Payment, attempt: int = 1) -> Delivery:
    delivery = Delivery(
        scene=name, order_reference=payment.order, event_id=payment.event_id, attempt=attempt
    )
    db.session.add(delivery)
    return delivery


def clear() -> None:
    """Put the shop back to where it began.

    The ids of processed events stay: they are never those of other events.
    """
    for model in (Delivery, Grant, Order, Product):
        db.session.execute(sa.delete(model))

    db.session.commit()
    open_shop()
