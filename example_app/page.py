"""The shop's page: the orders, the ledger, and how the deliveries were answered."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import inspect

import sqlalchemy as sa
from flask import abort, Blueprint, current_app, redirect, render_template, request, url_for
from werkzeug import Response

from . import scenes
from .delivery import DUPLICATE, Endpoint, QUEUED, RECEIVED
from .models import db, Grant, Order
from .scenes import Delivery, Scene, SCENES
from .webhooks import grant_order

LATEST = 6
"""How many plays the page shows."""

GIVEN_UP = dt.timedelta(seconds=15)
"""Whoever has had no answer for so long gets none: the server was stopped meanwhile."""

MEANINGS = {
    RECEIVED: ("processed", "The handler ran, and its work is committed."),
    DUPLICATE: ("duplicate", "Processed already. The handler did not run."),
    QUEUED: ("queued", "A worker runs the handler."),
    "401 mismatch": ("rejected", "The signature does not fit. The handler did not run."),
    "500 internal server error": ("failed", "The handler raised. All it did was rolled back."),
    "503 in_progress": ("in progress", "Being processed at this moment. Sangho tries again."),
    "503 unavailable": ("unavailable", "The database is busy. Sangho tries again."),
}
"""What an answer says, in a word and in a sentence."""

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

page = Blueprint("page", __name__)

player = Blueprint("player", __name__)
"""For the demonstration only: whoever sees the page can have orders paid."""


@dataclasses.dataclass(frozen=True)
class Played:
    """What became of a scene.

    :param grants: how often the ledger holds the order.
    """

    scene: Scene
    order: Order
    deliveries: list[Delivery]
    grants: int

    @property
    def state(self) -> str:
        if self.is_running:
            return "running"

        return "kept" if self.is_kept else "broken"

    @property
    def is_running(self) -> bool:
        if scenes.now() - self.deliveries[-1].sent_at > GIVEN_UP:
            return False

        answers = [delivery.answer for delivery in self.deliveries]
        return None in answers or (QUEUED in answers and self.grants == 0)

    @property
    def is_kept(self) -> bool:
        """Whether the order was paid exactly once, or never if the delivery was not genuine."""
        processed = [delivery for delivery in self.deliveries if delivery.answer == RECEIVED]
        status = "paid" if self.scene.grants else "open"
        return (
            self.order.status == status
            and self.grants == self.scene.grants
            and len(processed) <= self.scene.grants
        )

    @property
    def verdict(self) -> str:
        order = f"Order {self.order.reference}"

        if self.is_running:
            return f"{order}: Sangho is delivering …"

        if not self.is_kept:
            return f"Not as promised. {order} is {self.order.status}: {self.grants} in the ledger."

        if self.scene.grants:
            return f"{order} was paid exactly once: 1 row in the ledger."

        return f"{order} stays open: no row in the ledger."

    @property
    def count(self) -> str:
        words = [meaning(delivery.answer)[0] for delivery in self.deliveries if delivery.answer]
        counted = [f"{number} {word}" for word, number in collections.Counter(words).items()]
        noun = "delivery" if len(self.deliveries) == 1 else "deliveries"
        return f"{len(self.deliveries)} {noun}: {', '.join(counted)}"


def meaning(answer: str) -> tuple[str, str]:
    """What an answer says, in a word and in a sentence."""
    return MEANINGS.get(answer, (answer, "Sangho tries again."))


@page.get("/")
def index() -> str:
    # Deliveries first: what is read after an answer holds all that was committed before it.
    plays = _latest_plays()
    orders = db.session.scalars(sa.select(Order).order_by(Order.reference)).all()
    ledger = db.session.scalars(sa.select(Grant).order_by(Grant.id.desc())).all()
    by_reference = {order.reference: order for order in orders}
    grants = collections.Counter(grant.order_reference for grant in ledger)
    return render_template(
        "shop.html",
        has_player=player.name in current_app.blueprints,
        scenes=SCENES,
        orders=orders,
        ledger=ledger,
        grants=grants,
        played=[
            Played(SCENES[play[0].scene], by_reference[reference], play, grants[reference])
            for reference, play in plays.items()
            if reference in by_reference
        ],
        meaning=meaning,
        handler=inspect.getsource(grant_order),
    )


def _latest_plays() -> dict[str, list[Delivery]]:
    """The deliveries that were made last, newest play first, by the order that is paid."""
    plays: dict[str, list[Delivery]] = {}

    for delivery in db.session.scalars(sa.select(Delivery).order_by(Delivery.id)):
        plays.setdefault(delivery.order_reference, []).append(delivery)

    return dict(list(reversed(plays.items()))[:LATEST])


@page.after_request
def forbid_foreign_content(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
    return response


@player.post("/play/<name>")
def play(name: str) -> Response:
    if name not in SCENES:
        abort(404)

    # The port that the server listens on. The one in the URL may be that of a proxy.
    host: str = request.environ["SERVER_NAME"]
    port = int(request.environ["SERVER_PORT"])
    path = url_for("sangho_webhooks.receive")
    scenes.start(name, Endpoint(_ANY_ADDRESS.get(host, host), port, path))
    return redirect(url_for("page.index"), 303)


@player.post("/reset")
def reset() -> Response:
    scenes.clear()
    return redirect(url_for("page.index"), 303)
