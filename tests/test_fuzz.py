"""``tests/fuzz`` finds nothing in the endpoint, and finds each fault that is put there."""

from __future__ import annotations

import collections.abc as c
import contextlib
import io
import logging
import pathlib
import random
import sys
import typing as t

import pytest
from flask import current_app, Request
from werkzeug.exceptions import HTTPException

import flask_sangho_webhooks.blueprint
import flask_sangho_webhooks.extension
from flask_sangho_webhooks import Event, Outcome, RedisGuard, SQLGuard
from flask_sangho_webhooks.config import Config

from .fuzz.delivery import Delivery
from .fuzz.generate import delivery
from .fuzz.sources import Read
from .fuzz.stores import target
from .fuzz.target import Finding, HandlerError, Target

INPUTS = 1_500
PatchAttribute = c.Callable[[object, str, object], None]

blueprint: t.Any = flask_sangho_webhooks.blueprint
extension: t.Any = flask_sangho_webhooks.extension


def fuzz(target: Target) -> None:
    source = random.Random(1)

    for _ in range(INPUTS):
        target.deliver(delivery(Read(source.randbytes(400))))

    target.check()


@pytest.fixture(params=["sql", "redis"])
def any_target(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> c.Iterator[Target]:
    with target(request.param, tmp_path) as made:
        yield made


def test_endpoint_as_it_is(any_target: Target) -> None:
    fuzz(any_target)

    assert any_target.inputs == INPUTS
    assert any_target.verified > INPUTS // 8
    assert min(any_target.seen[kind] for kind in ("processed", "discarded", "retry", "failed")) > 10


def test_input_can_be_stored() -> None:
    made = delivery(Read(random.Random(2).randbytes(400)))

    assert Delivery.load(made.dump()) == made


# Ways to break the endpoint. Each is what somebody has published as a receiver of webhooks.


def parse_first(patch: PatchAttribute) -> None:
    verify = blueprint.verify

    def verify_late(body: bytes, *arguments: t.Any) -> t.Any:
        Event.from_body(body)
        return verify(body, *arguments)

    patch(blueprint, "verify", verify_late)


def decode_body(patch: PatchAttribute) -> None:
    verify = blueprint.verify
    patch(blueprint, "verify", lambda body, *rest: verify(body.decode().encode(), *rest))


def encode_header(patch: PatchAttribute) -> None:
    verify = blueprint.verify

    def verify_ascii(body: bytes, header: str | None, *rest: t.Any) -> t.Any:
        return verify(body, (header or "").encode("ascii").decode(), *rest)

    patch(blueprint, "verify", verify_ascii)


def trust_what_is_unsigned(patch: PatchAttribute) -> None:
    verify = blueprint.verify

    def verify_if_signed(body: bytes, header: str | None, *rest: t.Any) -> t.Any:
        return 0 if header is None else verify(body, header, *rest)

    patch(blueprint, "verify", verify_if_signed)


def accept_any_age(patch: PatchAttribute) -> None:
    verify = blueprint.verify
    patch(blueprint, "verify", lambda *arguments: verify(*arguments[:3], 10**12))


def read_everything(patch: PatchAttribute) -> None:
    read_body = blueprint._read_body

    def read(posted: Request, limit: int) -> t.Any:
        posted.max_content_length = sys.maxsize

        with contextlib.suppress(HTTPException):
            posted.stream = io.BytesIO(posted.stream.read())

        return read_body(posted, limit)

    patch(blueprint, "_read_body", read)


def look_up_the_header_id(patch: PatchAttribute) -> None:
    verified = blueprint._verified_event

    def seen_first(config: Config, posted: Request) -> t.Any:
        guard = current_app.extensions["sangho_webhooks"]["sangho_webhooks"].guard
        guard.seen(posted.headers.get("Sangho-Event-ID", ""))
        return verified(config, posted)

    patch(blueprint, "_verified_event", seen_first)


def trust_the_header_id(patch: PatchAttribute) -> None:
    from_body = Event.from_body

    def other_id(body: bytes, header_id: str | None = None) -> t.Any:
        event = from_body(body)
        return event if header_id is None else Event(id=header_id, type=event.type)

    patch(blueprint, "Event", type("Event", (), {"from_body": staticmethod(other_id)}))


def rewrite_the_body(patch: PatchAttribute) -> None:
    from_body = Event.from_body

    def rewritten(body: bytes, header_id: str | None = None) -> Event:
        event = from_body(body, header_id)
        return Event(id=event.id, type=event.type, payload={**event.payload, "data": {}}, body=body)

    patch(blueprint, "Event", type("Event", (), {"from_body": staticmethod(rewritten)}))


def log_the_signature(patch: PatchAttribute) -> None:
    verified = blueprint._verified_event

    def verbose(config: Config, posted: Request) -> t.Any:
        logging.getLogger("shop").info("A delivery: %s", posted.headers.get("Sangho-Signature"))
        return verified(config, posted)

    patch(blueprint, "_verified_event", verbose)


def log_the_body(patch: PatchAttribute) -> None:
    verified = blueprint._verified_event

    def verbose(config: Config, posted: Request) -> t.Any:
        logging.getLogger("shop").info("A delivery: %s", posted.get_data())
        return verified(config, posted)

    patch(blueprint, "_verified_event", verbose)


def log_a_traceback(patch: PatchAttribute) -> None:
    reject = blueprint._reject

    def report(*arguments: t.Any) -> t.Any:
        logging.getLogger("shop").exception("refused")
        return reject(*arguments)

    patch(blueprint, "_reject", report)


def run_twice(patch: PatchAttribute) -> None:
    run_handlers = extension.run_handlers
    patch(extension, "run_handlers", lambda handlers, *rest: run_handlers(handlers * 2, *rest))


def record_nothing(patch: PatchAttribute) -> None:
    def once(guard: object, event: Event, dispatch: c.Callable[[], None]) -> Outcome:
        dispatch()
        return Outcome.PROCESSED

    patch(SQLGuard, "once", once)
    patch(RedisGuard, "once", once)


def record_what_failed(patch: PatchAttribute) -> None:
    run_handlers = extension.run_handlers

    def swallow(*arguments: t.Any) -> None:
        with contextlib.suppress(HandlerError):
            run_handlers(*arguments)

    patch(extension, "run_handlers", swallow)


SABOTAGES = [
    parse_first,
    decode_body,
    encode_header,
    trust_what_is_unsigned,
    accept_any_age,
    read_everything,
    look_up_the_header_id,
    trust_the_header_id,
    rewrite_the_body,
    log_the_signature,
    log_the_body,
    log_a_traceback,
    run_twice,
    record_nothing,
    record_what_failed,
]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda function: function.__name__)
def test_sabotage_is_found(
    any_target: Target,
    sabotage: c.Callable[[PatchAttribute], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sabotage(monkeypatch.setattr)

    with pytest.raises(Finding):
        fuzz(any_target)
