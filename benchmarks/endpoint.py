"""What both apps and the sender agree on."""

from __future__ import annotations

SECRET = "whsec_5f0c1d2e3b4a59687786a5b4c3d2e1f0"
PATH = "/webhook"

TYPE = "payment_intent.succeeded"
"""Its handler writes one row."""

SLOW_TYPE = "payment_intent.created"
"""Its handler calls the app's ``pause`` after it has written one row."""

UNHANDLED_TYPE = "customer.updated"
