"""An app with Sentry, whose events stay here: ``python -m tests.sentry_app recipe|defaults`` prints
what each delivery has reported, as JSON.
"""

from __future__ import annotations

import json
import logging
import runpy
import sys
import typing as t

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from flask_sangho_webhooks import Discard, Event, GuardUnavailable, RetryLater
from flask_sangho_webhooks.testing import sign

from .support import event_body, SECRET, Shop

BODY_MARK = "private-body-8c1f"

reported: list[t.Any] = []


class LocalTransport(Transport):
    """Keeps events in place of sending them."""

    def capture_envelope(self, envelope: Envelope) -> None:
        reported.extend(item.payload.json for item in envelope.items if item.type == "event")


def main(setup: str) -> None:
    module: t.Any = sentry_sdk
    initialise = module.init
    here: dict[str, t.Any] = {"dsn": "http://key@127.0.0.1:9/1", "transport": LocalTransport}

    if setup == "recipe":
        module.init = lambda **options: initialise(**options | here)
        recipe = runpy.run_module("tests.recipes.sentry")  # its receiver lives as long as this
        assert recipe["name_the_event"]
    else:
        initialise(**here)

    logging.getLogger("flask_sangho_webhooks").setLevel(logging.INFO)

    with Shop("sqlite://") as shop:
        print(json.dumps(scenarios(shop)))  # noqa: T201


def scenarios(shop: Shop) -> dict[str, t.Any]:
    """The status of each delivery, its signature, and what it has reported."""
    on = shop.webhooks.on

    @on("payout.paid")
    def succeed(event: Event) -> None:
        shop.grant(event.id)

    @on("payout.failed")
    def fail(event: Event) -> None:
        raise ValueError("a handler's own")

    @on("payout.created")
    def later(event: Event) -> None:
        raise RetryLater

    @on("refund.created")
    def unavailable(event: Event) -> None:
        raise GuardUnavailable("cut off")

    @on("refund.failed")
    def discard(event: Event) -> None:
        raise Discard

    @on("refund.updated")
    def broken_callback(event: Event) -> None:
        def callback() -> None:
            raise LookupError("in a callback")

        shop.webhooks.on_commit(callback)

    found: dict[str, t.Any] = {}

    def deliver(name: str, event_type: str, **headers: str) -> None:
        reported.clear()
        body = event_body(f"evt_{name}", event_type, data={"object": {"note": BODY_MARK}})
        body = b"" if "Transfer-Encoding" in headers else body
        headers = {"Sangho-Signature": sign(body, SECRET), **headers}
        response = shop.post(body, headers=headers)
        found[name] = {
            "status": response.status_code,
            "signature": headers["Sangho-Signature"],
            "reported": list(reported),
        }

    deliver("processed", "payout.paid")
    deliver("processed", "payout.paid")
    deliver("rejected", "payout.paid", **{"Sangho-Signature": sign(b"", SECRET)})
    deliver("failed", "payout.failed")
    deliver("retry", "payout.created")
    deliver("unavailable", "refund.created")
    deliver("discarded", "refund.failed")
    deliver("callback", "refund.updated")
    deliver("body gone", "payout.paid", **{"Transfer-Encoding": "chunked"})
    return found


if __name__ == "__main__":
    main(sys.argv[1])
