import os

import sentry_sdk
from sentry_sdk.scrubber import DEFAULT_DENYLIST, EventScrubber

from flask_sangho_webhooks import event_failed

sentry_sdk.init(
    dsn=os.environ.get("SENTRY_DSN"),
    max_request_body_size="never",
    event_scrubber=EventScrubber(
        [*DEFAULT_DENYLIST, "sangho-signature", "http_sangho_signature"], recursive=True
    ),
)


@event_failed.connect
def name_the_event(app, event, **_):
    sentry_sdk.set_tags({"sangho.event_id": event.id, "sangho.event_type": event.type})
