"""The event types that Sangho is known to send."""

from __future__ import annotations

import typing as t

EventType = t.Literal[
    "payment_intent.created",
    "payment_intent.succeeded",
    "payment_intent.payment_failed",
    "payment_intent.canceled",
    "payment_intent.requires_action",
    "transaction.created",
    "transaction.succeeded",
    "transaction.failed",
    "transaction.refunded",
    "customer.created",
    "customer.updated",
    "customer.deleted",
    "invoice.created",
    "invoice.paid",
    "invoice.payment_failed",
    "invoice.voided",
    "subscription.created",
    "subscription.updated",
    "subscription.canceled",
    "subscription.trial_ending",
    "refund.created",
    "refund.updated",
    "refund.failed",
    "refund.succeeded",
    "checkout.session.completed",
    "checkout.session.expired",
    "payout.created",
    "payout.paid",
    "payout.failed",
    "account.updated",
    "account.verified",
    "account.restricted",
    "kyc.updated",
    "payment.succeeded",
    "payment.failed",
    "funds.released",
    "funds.frozen",
    "funds.unfrozen",
    "clawback.succeeded",
    "webhook.test",
]

KNOWN_TYPES: tuple[str, ...] = t.get_args(EventType)
"""Every known type. Others may be added by Sangho at any time; handlers for them are accepted."""
