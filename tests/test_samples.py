"""Every known type has a sample that looks like something of Sangho's."""

from __future__ import annotations

import collections.abc as c
import json
import re
import typing as t

import pytest

from flask_sangho_webhooks.event_types import KNOWN_TYPES
from flask_sangho_webhooks.samples import sample, SAMPLES

PREFIXES = {
    "account": "acct",
    "checkout.session": "cs",
    "clawback": "cb",
    "customer": "cus",
    "invoice": "inv",
    "payment": "cpay",
    "payment_intent": "pi",
    "payout": "po",
    "refund": "re",
    "subscription": "sub",
    "transaction": "txn",
    "webhook_endpoint": "whk",
}
"""Of the ids, by what ``object`` says."""

AMOUNT = re.compile("amount|commission|total_spent")


def members(value: t.Any) -> c.Iterator[tuple[str, t.Any]]:
    """Every member of an object, also of those inside."""
    if isinstance(value, list):
        for entry in value:
            yield from members(entry)
    elif isinstance(value, dict):
        for name, member in value.items():
            yield name, member
            yield from members(member)


def test_every_known_type_has_one_and_nothing_else_has() -> None:
    assert list(SAMPLES) == list(KNOWN_TYPES)


@pytest.mark.parametrize("event_type", KNOWN_TYPES)
def test_sample(event_type: str) -> None:
    made = sample(event_type)
    amounts = [value for name, value in members(made) if AMOUNT.search(name)]

    assert json.loads(json.dumps(made)) == made
    assert re.fullmatch(PREFIXES[made["object"]] + "_[0-9a-f]{16}", made["id"])
    assert all(isinstance(a, int) or a.isdecimal() for a in amounts)
    assert "currency" not in made or made["currency"] == "XAF"
    assert "currency" not in made or amounts


@pytest.mark.parametrize("event_type", KNOWN_TYPES)
def test_type_is_of_its_object(event_type: str) -> None:
    """But for those that tell of another object than they are named after."""
    of = {"kyc": "account", "funds": "payment", "webhook": "webhook_endpoint"}
    name = event_type.rpartition(".")[0]

    assert SAMPLES[event_type]["object"] == of.get(name, name)


def test_types_of_one_object_tell_of_the_same_one() -> None:
    objects = {(made["object"], made["id"]) for made in SAMPLES.values()}

    assert len(objects) == len(PREFIXES)


def test_a_sample_is_the_callers_own() -> None:
    sample("payment_intent.succeeded")["metadata"]["order_id"] = 2

    assert sample("payment_intent.succeeded")["metadata"] == {"order_id": 1}
    assert sample("refund.created")["metadata"] == {"order_id": 1}


def test_unknown_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'invoice\.payd'\. Did you mean 'invoice\.paid'\?$"):
        sample("invoice.payd")
