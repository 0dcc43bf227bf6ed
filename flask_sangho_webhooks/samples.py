"""What Sangho's events are about: one sample object for every known type. Pure.

The fields are those that the official SDK (``sangho`` 0.2.0) names, and what its methods take;
Sangho may send more of them, and others. Amounts are whole XAF, of marketplace payments as strings.
Types of one object share its id, so that ``invoice.created`` and then ``invoice.paid`` tell of one
invoice.
"""

from __future__ import annotations

import copy
import typing as t

from .event_types import EventType
from .registry import suggestion

_CREATED = "2026-01-15T09:30:00Z"
_UPDATED = "2026-01-15T09:31:12Z"
_EMAIL = "ada@example.com"
_PHONE = "+24177000000"
_METADATA = {"order_id": 1}

_CUSTOMER: dict[str, t.Any] = {
    "id": "cus_5f1c2a9e7b3d4068",
    "object": "customer",
    "email": _EMAIL,
    "name": "Ada Obame",
    "phone": _PHONE,
    "status": "active",
    "is_blacklisted": False,
    "transactions_count": 3,
    "total_spent": 15000,
    "metadata": {},
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_PAYMENT_INTENT: dict[str, t.Any] = {
    "id": "pi_8c4e1f7a2b9d4c60",
    "object": "payment_intent",
    "amount": 5000,
    "currency": "XAF",
    "status": "requires_confirmation",
    "customer_email": _EMAIL,
    "description": "Order 1",
    "payment_method_types": ["mobile_money", "card"],
    "metadata": _METADATA,
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_TRANSACTION: dict[str, t.Any] = {
    "id": "txn_2d7b9c4f6a1e4830",
    "object": "transaction",
    "payment_intent": _PAYMENT_INTENT["id"],
    "customer": _CUSTOMER["id"],
    "amount": 5000,
    "amount_refunded": 0,
    "currency": "XAF",
    "status": "pending",
    "payment_method": {"type": "mobile_money", "phone": _PHONE},
    "metadata": _METADATA,
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_INVOICE: dict[str, t.Any] = {
    "id": "inv_9a3e5c7d1f2b4e86",
    "object": "invoice",
    "customer": _CUSTOMER["id"],
    "number": "2026-0001",
    "amount_due": 12000,
    "amount_paid": 0,
    "currency": "XAF",
    "status": "draft",
    "due_date": "2026-02-14",
    "metadata": {},
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_SUBSCRIPTION: dict[str, t.Any] = {
    "id": "sub_4b8d2e6f9c1a4573",
    "object": "subscription",
    "customer": _CUSTOMER["id"],
    "plan": "plan_7e2c9a4d1b8f4360",
    "status": "trialing",
    "trial_end": "2026-01-29T09:30:00Z",
    "current_period_end": "2026-02-15T09:30:00Z",
    "cancel_at_period_end": False,
    "metadata": {},
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_REFUND: dict[str, t.Any] = {
    "id": "re_6e1a8c3f5d7b4920",
    "object": "refund",
    "transaction": _TRANSACTION["id"],
    "amount": 5000,
    "currency": "XAF",
    "status": "pending",
    "reason": "requested_by_customer",
    "metadata": _METADATA,
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_CHECKOUT_SESSION: dict[str, t.Any] = {
    "id": "cs_1f5b7d9e3c2a4684",
    "object": "checkout.session",
    "line_items": [{"name": "Solar lamp", "unit_amount": 5000, "quantity": 1}],
    "amount_total": 5000,
    "currency": "XAF",
    "status": "open",
    "payment_intent": None,
    "customer_email": _EMAIL,
    "success_url": "https://shop.example/paid",
    "cancel_url": "https://shop.example/cart",
    "metadata": _METADATA,
    "created_at": _CREATED,
    "expires_at": "2026-01-16T09:30:00Z",
}

_ACCOUNT: dict[str, t.Any] = {
    "id": "acct_3c9e7a1d5b2f4806",
    "object": "account",
    "external_id": "seller-42",
    "email": "seller@example.com",
    "business_name": "Boutique Obame",
    "status": "linked",
    "charges_enabled": False,
    "payouts_enabled": False,
    "kyc_level": 0,
    "livemode": False,
    "created": 1768469400,
}

_PAYOUT: dict[str, t.Any] = {
    "id": "po_7d2f4b6a8e1c4953",
    "object": "payout",
    "account": _ACCOUNT["id"],
    "amount": 45000,
    "currency": "XAF",
    "destination": "mobile:077000000",
    "status": "pending",
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_MARKETPLACE_PAYMENT: dict[str, t.Any] = {
    "id": "cpay_5a9c1e3d7f2b4068",
    "object": "payment",
    "account": _ACCOUNT["id"],
    "mode": "escrow",
    "amount": "25000",
    "shipping_amount": "2000",
    "commission": "1250",
    "currency": "XAF",
    "status": "pending",
    "external_reference": "ORDER-42",
    "created_at": _CREATED,
    "updated_at": _CREATED,
}

_CLAWBACK: dict[str, t.Any] = {
    "id": "cb_8f3d6b1e9a4c4275",
    "object": "clawback",
    "account": _ACCOUNT["id"],
    "payment": _MARKETPLACE_PAYMENT["id"],
    "amount": "23750",
    "currency": "XAF",
    "status": "succeeded",
    "created_at": _UPDATED,
}

_WEBHOOK_TEST: dict[str, t.Any] = {
    "id": "whk_2b6e8d4f1c9a4730",
    "object": "webhook_endpoint",
    "message": "A test delivery.",
}


def _later(base: dict[str, t.Any], **changes: t.Any) -> dict[str, t.Any]:
    return {**base, "updated_at": _UPDATED, **changes}


_ENABLED = {"status": "active", "charges_enabled": True, "payouts_enabled": True, "kyc_level": 2}

SAMPLES: t.Final[dict[str, dict[str, t.Any]]] = {
    "payment_intent.created": _PAYMENT_INTENT,
    "payment_intent.succeeded": _later(_PAYMENT_INTENT, status="succeeded"),
    "payment_intent.payment_failed": _later(
        _PAYMENT_INTENT,
        status="failed",
        last_error={"code": "insufficient_funds", "message": "The wallet holds too little."},
    ),
    "payment_intent.canceled": _later(_PAYMENT_INTENT, status="canceled"),
    "payment_intent.requires_action": _later(_PAYMENT_INTENT, status="requires_action"),
    "transaction.created": _TRANSACTION,
    "transaction.succeeded": _later(_TRANSACTION, status="succeeded"),
    "transaction.failed": _later(_TRANSACTION, status="failed", failure_code="insufficient_funds"),
    "transaction.refunded": _later(_TRANSACTION, status="refunded", amount_refunded=5000),
    "customer.created": _CUSTOMER,
    "customer.updated": _later(_CUSTOMER, phone="+24166000000"),
    "customer.deleted": _later(_CUSTOMER, status="inactive", deleted=True),
    "invoice.created": _INVOICE,
    "invoice.paid": _later(_INVOICE, status="paid", amount_paid=12000),
    "invoice.payment_failed": _later(_INVOICE, status="open"),
    "invoice.voided": _later(_INVOICE, status="void"),
    "subscription.created": _SUBSCRIPTION,
    "subscription.updated": _later(_SUBSCRIPTION, status="active"),
    "subscription.canceled": _later(_SUBSCRIPTION, status="canceled", canceled_at=_UPDATED),
    "subscription.trial_ending": _later(_SUBSCRIPTION),
    "refund.created": _REFUND,
    "refund.updated": _later(_REFUND, status="processing"),
    "refund.failed": _later(_REFUND, status="failed", failure_code="wallet_closed"),
    "refund.succeeded": _later(_REFUND, status="succeeded"),
    "checkout.session.completed": {
        **_CHECKOUT_SESSION,
        "status": "complete",
        "payment_intent": _PAYMENT_INTENT["id"],
    },
    "checkout.session.expired": {**_CHECKOUT_SESSION, "status": "expired"},
    "payout.created": _PAYOUT,
    "payout.paid": _later(_PAYOUT, status="paid"),
    "payout.failed": _later(_PAYOUT, status="failed", failure_code="wallet_unreachable"),
    "account.updated": {**_ACCOUNT, **_ENABLED},
    "account.verified": {**_ACCOUNT, **_ENABLED},
    "account.restricted": {**_ACCOUNT, "status": "restricted"},
    "kyc.updated": {**_ACCOUNT, **_ENABLED},
    "payment.succeeded": _later(_MARKETPLACE_PAYMENT, status="held"),
    "payment.failed": _later(_MARKETPLACE_PAYMENT, status="failed"),
    "funds.released": _later(_MARKETPLACE_PAYMENT, status="released"),
    "funds.frozen": _later(_MARKETPLACE_PAYMENT, status="frozen"),
    "funds.unfrozen": _later(_MARKETPLACE_PAYMENT, status="held"),
    "clawback.succeeded": _CLAWBACK,
    "webhook.test": _WEBHOOK_TEST,
}


def sample(event_type: EventType | str) -> dict[str, t.Any]:
    """An object as an event of this type would carry it, to change at will.

    :param event_type: a known type.
    :raises ValueError: naming the nearest known type, if Sangho is not known to send this one.
    """
    if event_type not in SAMPLES:
        hint = suggestion(event_type, with_prefixes=False)
        raise ValueError(f"There is no sample of {event_type!r}.{hint}")

    return copy.deepcopy(SAMPLES[event_type])
