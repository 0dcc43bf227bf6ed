"""From a request to a committed record, on every database."""

from __future__ import annotations

from flask_sangho_webhooks import Event

from .support import Shop, TYPE


def test_event_is_processed_once(shop: Shop) -> None:
    @shop.webhooks.on(TYPE)
    def grant(event: Event) -> None:
        shop.grant(event.object["id"])

    first, second = shop.deliver(), shop.deliver()

    assert (first.status_code, first.json) == (200, {"received": True})
    assert (second.status_code, second.json) == (200, {"received": True, "duplicate": True})
    assert shop.grants() == ["pi_1"]
    assert shop.recorded() == ["evt_1"]
