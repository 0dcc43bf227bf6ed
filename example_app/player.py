"""Plays Sangho: delivers events to the shop over HTTP and compares the answers with the promise."""

from __future__ import annotations

import collections.abc as c
import concurrent.futures
import dataclasses
import datetime as dt
import secrets
import threading
import time
import typing as t

import sqlalchemy as sa
from sangho.resources.webhooks import Webhooks  # type: ignore[import-untyped]

from .delivery import DUPLICATE, Endpoint, Payment, post, RECEIVED
from .models import Grant, Product
from .webhooks import webhooks

AT_ONCE = 20

NOT_NOW = frozenset({DUPLICATE, "503 in_progress", "503 unavailable"})
"""What a duplicate may be answered while the first run is unfinished, or has just ended."""

_RECORDS: sa.Table = t.cast(t.Any, webhooks.model).__table__


@dataclasses.dataclass(frozen=True)
class Receiver:
    """The shop as the player sees it.

    :param port: on 127.0.0.1.
    :param database: the shop's own, through connections of the player.
    :param secrets: of the endpoint: the new one and the old one of a rotation.
    :param command: runs ``flask`` with these arguments for the shop and returns what it printed.
    """

    port: int
    database: sa.Engine
    secrets: tuple[str, str] = dataclasses.field(repr=False)
    command: c.Callable[..., str]


@dataclasses.dataclass(frozen=True)
class Promise:
    """What has to be true after one or several deliveries.

    :param answer: what exactly one of them is answered.
    :param grants: how often the ledger holds the order afterwards.
    :param others: what every other one may be answered.
    """

    answer: str
    grants: int
    others: frozenset[str] = frozenset()

    def is_kept(self, answers: c.Sequence[str], grants: int) -> bool:
        if self.answer not in answers or grants != self.grants:
            return False

        others = list(answers)
        others.remove(self.answer)
        return self.others.issuperset(others)

    def __str__(self) -> str:
        others = f", all others {' or '.join(sorted(self.others))}" if self.others else ""
        return f"{self.answer}{others}, {self.grants} in the ledger"


@dataclasses.dataclass(frozen=True)
class Line:
    """What was sent, what was answered, what the ledger holds, and whether it is as promised."""

    sent: str
    answers: c.Sequence[str]
    ledger: str
    promise: str
    kept: bool


def sign(body: bytes, *keys: str, timestamp: int | None = None) -> str:
    """The ``Sangho-Signature`` that the official SDK makes, with one ``v1`` for each key."""
    seconds = int(time.time()) if timestamp is None else timestamp
    first, *others = (Webhooks.generate_test_header(body, key, seconds) for key in keys)
    return ",".join([first, *(other.partition(",")[2] for other in others)])


class Player:
    """Sangho, and an eye on the shop's database."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def play(self) -> c.Iterator[str | Line]:
        """Deliver everything there is to deliver.

        :return: headings, and what happened, as it happens.
        """
        new, old = self.receiver.secrets

        yield "A first delivery"
        first = Payment("A-1001")
        yield self.deliver(first, Promise(RECEIVED, 1))
        yield self.deliver(first, Promise(DUPLICATE, 1), "the same once more")

        yield f"{AT_ONCE} deliveries of one event at the same moment"
        many = Payment("A-1002")
        yield self.deliver(many, Promise(RECEIVED, 1, NOT_NOW), times=AT_ONCE)
        yield self.deliver(many, Promise(DUPLICATE, 1), "the same once more")

        yield "Deliveries that must not be trusted"
        forged = Payment("A-1003")
        tampered = forged.body.replace(b'"amount": 5000', b'"amount": 9000')
        yield self.deliver(
            forged,
            Promise("401 mismatch", 0),
            f"{forged}, the amount altered on the way",
            body=tampered,
            signature=sign(forged.body, new),
        )
        yield self.deliver(
            forged,
            Promise("400 expired", 0),
            "unaltered, signed ten minutes ago",
            signature=sign(forged.body, new, timestamp=int(time.time()) - 600),
        )
        yield self.deliver(forged, Promise(RECEIVED, 1), "unaltered, signed now")

        yield "A handler that fails once: nothing is left on the shelf"
        failing = Payment("A-1004")
        yield self.deliver(failing, Promise("500 internal server error", 0))
        self._restock("radio")
        yield self.deliver(failing, Promise(RECEIVED, 1), "restocked, and the same once more")
        yield self.deliver(failing, Promise(DUPLICATE, 1), "and again")

        yield "A secret that is being rotated"
        by_old, by_new, by_both = Payment("A-1005"), Payment("A-1006"), Payment("A-1007")
        yield self.deliver(
            by_both,
            Promise("401 mismatch", 0),
            f"{by_both}, signed with a secret of somebody else",
            signature=sign(by_both.body, f"whsec_{secrets.token_hex(16)}"),
        )

        for payment, keys, name in (
            (by_old, (old,), "with the old secret"),
            (by_new, (new,), "with the new secret"),
            (by_both, (new, old), "with both"),
        ):
            yield self.deliver(
                payment,
                Promise(RECEIVED, 1),
                f"{payment}, signed {name}",
                signature=sign(payment.body, *keys),
            )

        yield self.deliver(by_old, Promise(DUPLICATE, 1), f"{by_old}, now with the new secret")

        yield "Cleaning up: one record is 73 hours old, one 71"
        self._make_old(first, hours=73)
        self._make_old(many, hours=71)
        yield self.clean_up(first)
        yield self.deliver(many, Promise(DUPLICATE, 1), f"{many}, known for 71 hours")

    def deliver(
        self,
        payment: Payment,
        promise: Promise,
        sent: str | None = None,
        *,
        body: bytes | None = None,
        signature: str | None = None,
        times: int = 1,
    ) -> Line:
        """Deliver an event, or several times at the same moment.

        :param sent: how to call it; after the payment by default.
        :param body: if it is not the one that was signed.
        :param signature: by default fresh, and with the new secret.
        """
        body = payment.body if body is None else body
        signature = sign(body, self.receiver.secrets[0]) if signature is None else signature
        endpoint = Endpoint("127.0.0.1", self.receiver.port)
        delivery = (endpoint, payment.event_id, body, signature, threading.Barrier(times))

        with concurrent.futures.ThreadPoolExecutor(times) as pool:
            posts = [pool.submit(post, *delivery) for _ in range(times)]
            answers = [answer.result() for answer in posts]

        grants = self._count(Grant.order_reference == payment.order)
        return Line(
            str(payment) if sent is None else sent,
            answers,
            f"{payment.order}: {grants}",
            str(promise),
            promise.is_kept(answers, grants),
        )

    def clean_up(self, expired: Payment) -> Line:
        """Run ``flask sangho cleanup``, which has one record to delete."""
        records, grants = self._records(), self._count()
        answer = self.receiver.command("sangho", "cleanup").strip()
        deleted = records - self._records()
        return Line(
            "flask sangho cleanup",
            [answer],
            f"in all: {self._count()}",
            f"1 record deleted, that of {expired.event_id}, and {grants} in the ledger",
            "1 record" in answer and deleted == {expired.event_id} and self._count() == grants,
        )

    def _count(self, *conditions: sa.ColumnElement[bool]) -> int:
        statement = sa.select(sa.func.count()).select_from(Grant).where(*conditions)

        with self.receiver.database.connect() as connection:
            return connection.execute(statement).scalar_one()

    def _records(self) -> set[str]:
        with self.receiver.database.connect() as connection:
            return set(connection.scalars(sa.select(_RECORDS.c.event_id)))

    def _restock(self, product: str) -> None:
        with self.receiver.database.begin() as connection:
            connection.execute(sa.update(Product).where(Product.name == product).values(stock=10))

    def _make_old(self, payment: Payment, *, hours: int) -> None:
        then = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(hours=hours)
        statement = sa.update(_RECORDS).where(_RECORDS.c.event_id == payment.event_id)

        with self.receiver.database.begin() as connection:
            connection.execute(statement.values(processed_at=then))
