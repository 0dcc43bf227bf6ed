"""The endpoint, and everything that an input must not do to it."""

from __future__ import annotations

import collections
import collections.abc as c
import contextlib
import logging
import types
import typing as t
import warnings

import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]
from flask import Flask, request
from werkzeug.exceptions import HTTPException

import flask_sangho_webhooks.signature as signature
from flask_sangho_webhooks import Discard, Event, RetryLater, SanghoWebhooks

from .answers import Answer, Expected
from .bodies import PRIVATE, TYPES
from .delivery import Delivery
from .oracle import Accepted, MAX_BODY, MAX_READ, NOW, Refused, SECRETS, verdicts

BATCH = 500
"""Inputs between two looks into the store, which is emptied then."""


class Finding(Exception):
    """The endpoint did something else than it must."""


class HandlerError(Exception):
    """A handler's own."""


class Target:
    """An app with the extension, and a model of what it has to remember."""

    def __init__(self) -> None:
        self.inputs = 0
        self.verified = 0
        self.seen: collections.Counter[str] = collections.Counter()
        self.batch: list[Delivery] = []
        self._ran: list[Event] = []
        self._processed: dict[str, bool] = {}
        self._touches = 0
        self._records: list[logging.LogRecord] = []
        self.app = Flask(__name__)
        self.app.config["SANGHO_WEBHOOK_SECRET"] = list(SECRETS)
        self.app.config["SANGHO_WEBHOOK_MAX_BODY"] = MAX_BODY
        self._set_up()

    # What a guard's own kind of target says.

    def _make(self) -> SanghoWebhooks:
        raise NotImplementedError

    def _effect(self, event: Event) -> None:
        """Let a handler have an effect."""

    def _stored(self) -> tuple[list[str], list[str] | None]:
        """The recorded ids, and the effects if they are in the store as well. Empties both."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections to the store."""

    def touched(self, *_: object) -> None:
        self._touches += 1

    def _set_up(self) -> None:
        webhooks = self._make()

        @webhooks.on(TYPES["succeeds"])
        def succeed(event: Event) -> None:
            self._run(event)

        @webhooks.on("invoice.*")
        def discard(event: Event) -> None:
            self._run(event)
            raise Discard

        @webhooks.on(TYPES["retries"])
        def retry(event: Event) -> None:
            self._run(event)
            raise RetryLater(5)

        @webhooks.on(TYPES["fails"])
        def fail(event: Event) -> None:
            self._run(event)
            raise HandlerError

        @self.app.before_request
        def look_at_the_form() -> None:
            if request.blueprint and request.method == "POST":
                with contextlib.suppress(HTTPException):
                    _ = request.form, request.files

        self.app.register_blueprint(webhooks.blueprint)

    @contextlib.contextmanager
    def watch(self) -> c.Iterator[None]:
        """Listen to all logs, and stop the clock by which signatures are verified."""
        listener = _Listener(self._records)
        root = logging.getLogger()
        level = root.level
        root.addHandler(listener)
        root.setLevel(logging.INFO)
        clock: t.Any = types.SimpleNamespace(time=lambda: float(NOW))
        modules: list[t.Any] = [sdk, signature]
        clocks = [module.time for module in modules]

        try:
            for module in modules:
                module.time = clock

            yield
        finally:
            for module, original in zip(modules, clocks, strict=True):
                module.time = original

            root.removeHandler(listener)
            root.setLevel(level)

    def _run(self, event: Event) -> None:
        self._ran.append(event)
        self._effect(event)

    # One input.

    def deliver(self, delivery: Delivery) -> None:
        """Send one input and compare the answer.

        :raises Finding: naming what is wrong.
        """
        self.inputs += 1
        self.batch.append(delivery)
        self._ran.clear()
        self._records.clear()
        touches = self._touches
        answer = self._call(delivery)
        right = list(self._expected(delivery))
        expected = next((one for one in right if one.matches(answer, self._ran)), None)

        if expected is None:
            logged = [record.exc_info[1] for record in self._records if record.exc_info]
            raise Finding(f"{answer}, ran {self._ran}, logged {logged}; right: {right}")

        if self._touches != touches and not expected.asks:
            raise Finding(f"{answer}, but the store was asked")

        if expected.event is not None:
            self.verified += 1

            if expected.recorded:
                self._processed[expected.event.event_id] = expected.has_effect

        self.seen[expected.name] += 1
        self._check_words(delivery, answer, may_fail=expected.name == "failed")

        if len(self.batch) >= BATCH:
            self.check()

    def check(self) -> None:
        """Compare the store with the model, and empty both.

        :raises Finding: if there is a row or key too many or too few.
        """
        ids, effects = self._stored()
        right = sorted(self._processed)

        if ids != right:
            raise Finding(f"the store has {ids}, not {right}")

        right = sorted(event_id for event_id, effect in self._processed.items() if effect)

        if effects is not None and effects != right:
            raise Finding(f"there are effects of {effects}, not {right}")

        self._processed.clear()
        self.batch.clear()

    def _call(self, delivery: Delivery) -> Answer:
        environ = delivery.environ()
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            started[:] = [(status, headers)]

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # hypothesis has filters of its own
                pieces = t.cast(t.Any, self.app)(environ, start_response)
                body = b"".join(pieces)

            if hasattr(pieces, "close"):
                pieces.close()
        except Exception as error:
            raise Finding(f"{type(error).__name__} left the app: {error}") from error

        if environ["wsgi.input"].read_bytes > MAX_READ:
            raise Finding(f"{environ['wsgi.input'].read_bytes} bytes of the body were read")

        if environ["wsgi.errors"].getvalue():
            raise Finding(f"written to wsgi.errors: {environ['wsgi.errors'].getvalue()}")

        status, headers = started[0]
        return Answer(int(status[:3]), dict(headers), body)

    def _expected(self, delivery: Delivery) -> c.Iterator[Expected]:
        if delivery.path.lstrip("/") not in ("webhook", "webhook/"):
            for status in (404, 308, 405):
                yield Expected(f"no route ({status})", status)
        elif delivery.method.upper() != "POST":
            status = 200 if delivery.method == "OPTIONS" else 405
            yield Expected(f"no delivery ({status})", status)
        else:
            for verdict in verdicts(delivery):
                if isinstance(verdict, Refused):
                    yield Expected(verdict.reason, verdict.status, error=verdict.reason)
                else:
                    yield self._outcome(verdict)

        if delivery.header("Host") is not None:
            for status in (400, 404):
                yield Expected(f"host refused ({status})", status)

    def _outcome(self, event: Accepted) -> Expected:
        handler = _handler(event)

        if handler == "unhandled":
            return Expected(handler, 200, {"received": True, "handled": False}, event=event)

        if event.event_id in self._processed:
            body = {"received": True, "duplicate": True}
            return Expected("duplicate", 200, body, event=event, asks=True)

        runs: t.Any = {"event": event, "runs": True, "asks": True}

        if handler == "fails":
            return Expected("failed", 500, **runs)

        if handler == "retries":
            return Expected("retry", 503, error="retry_later", **runs)

        if handler == "discards":
            body = {"received": True, "discarded": True}
            return Expected("discarded", 200, body, recorded=True, **runs)

        return Expected(
            "processed", 200, {"received": True}, recorded=True, has_effect=True, **runs
        )

    def _check_words(self, delivery: Delivery, answer: Answer, *, may_fail: bool) -> None:
        """Nothing private in logs and answers, and no traceback but the handler's own."""
        lines = [answer.body.decode("latin-1")]

        for record in self._records:
            lines.append(record.getMessage())

            if record.exc_info and not (may_fail and record.exc_info[0] is HandlerError):
                raise Finding(f"a traceback in the log: {record.exc_info[1]!r}")

        private = [*SECRETS, PRIVATE]
        private += [digest for digest in _digests(delivery) if len(digest) > 15]

        for line in lines:
            if any(text in line for text in private):
                raise Finding("the log or the answer shows a secret, a body or a signature")


class _Listener(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


def _handler(event: Accepted) -> str:
    kinds = {event_type: kind for kind, event_type in TYPES.items()}

    if event.event_type.startswith("invoice.") and event.event_type != "invoice.":
        return "discards"

    return kinds.get(event.event_type, "unhandled")


def _digests(delivery: Delivery) -> list[str]:
    header = delivery.header("Sangho-Signature") or ""
    return [part.partition("=")[2].strip() for part in header.split(",")]
