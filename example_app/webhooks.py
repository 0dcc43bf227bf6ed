"""What the shop does when Sangho says that something happened."""

from __future__ import annotations

from flask import current_app

from flask_sangho_webhooks import Discard, Event, RetryLater, SanghoWebhooks

from . import background
from .models import db, Grant, Order, Product

webhooks = SanghoWebhooks(db, guard=background.guard(), queue=background.queue())


class OutOfStock(Exception):
    """Lets the delivery fail. Sangho delivers the event again, and again for up to 48 hours."""


@webhooks.on("payment_intent.succeeded")
def grant_order(event: Event) -> None:
    """Hand over what was paid for.

    Everything written here commits together with the record that the event was processed, and
    nothing does if this function raises. There is no commit() to call.
    """
    order = order_of(event)
    order.status = "paid"
    db.session.add(Grant(order_reference=order.reference, event_id=event.id))

    if order.product.stock == 0:
        raise OutOfStock(f"There is no {order.product_name} to hand over.")

    order.product.stock = Product.stock - 1
    reference = order.reference
    webhooks.on_commit(lambda: send_receipt(reference))


@webhooks.on("payment_intent.payment_failed")
def mark_as_failed(event: Event) -> None:
    order = order_of(event)

    # Events may arrive in another order than they happened: what is paid stays paid.
    if order.status == "open":
        order.status = "failed"


def order_of(event: Event) -> Order:
    """The order that a payment is for.

    :raises Discard: if the payment has nothing to do with the shop. Sangho need not try again.
    :raises RetryLater: if there is no such order yet: its payment may overtake it.
    """
    reference = event.object.get("metadata", {}).get("order")

    if reference is None:
        raise Discard("The payment is not for an order.")

    order = db.session.get(Order, reference)

    if order is None:
        raise RetryLater(30)

    return order


def send_receipt(reference: str) -> None:
    """Stands for mail and other effects outside the database: they wait for the commit."""
    current_app.logger.info("A receipt for order %s is on its way.", reference)
