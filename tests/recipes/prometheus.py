import logging

from prometheus_client import Counter, Histogram

from flask_sangho_webhooks import delivery_rejected, event_failed

OUTCOMES = Counter("sangho_outcomes", "Deliveries by what became of them.", ["outcome"])
SECONDS = Histogram("sangho_seconds", "Time that an event took.", ["event_type"])
FAILURES = Counter("sangho_failures", "Exceptions in handlers.", ["event_type", "error"])
REJECTIONS = Counter("sangho_rejections", "Refused deliveries.", ["reason"])


class Metrics(logging.Handler):
    def emit(self, record):
        if hasattr(record, "outcome"):
            OUTCOMES.labels(record.outcome).inc()

            if record.event_type is not None:
                SECONDS.labels(record.event_type).observe(record.duration_ms / 1000)


logger = logging.getLogger("flask_sangho_webhooks")
logger.setLevel(logging.INFO)
logger.addHandler(Metrics())


@event_failed.connect
def count_failure(app, event, error, **_):
    FAILURES.labels(event.type, type(error).__name__).inc()


@delivery_rejected.connect
def count_rejection(app, reason, **_):
    REJECTIONS.labels(reason).inc()
