"""What is published to Celery's broker, and how, within a time limit."""

from __future__ import annotations

import base64
import collections
import collections.abc as c
import contextlib
import dataclasses
import datetime as dt
import os
import typing as t

import kombu.exceptions

from .errors import GuardUnavailable
from .event import Event

_MAX_IDLE = 10
"""Connections that are kept by a process for each Celery app."""

_STEP = 0.4
"""The part of the timeout that one step of publishing may take, such as connecting."""

DELIVERY_PERIOD = dt.timedelta(hours=48)
"""For so long after an event Sangho itself would deliver it again."""


@dataclasses.dataclass(frozen=True)
class Message:
    """What a message carries, in JSON."""

    endpoint: str
    event_id: str
    body: str
    """In base64: exactly the bytes that were signed."""
    queued_at: float
    failures: int = 0
    not_before: float = 0

    @property
    def event(self) -> Event:
        return Event.from_body(base64.b64decode(self.body), self.event_id)

    @property
    def give_up_at(self) -> float:
        """The Unix time after which a failure is final."""
        created = self.event.created
        start = self.queued_at if created is None else min(created.timestamp(), self.queued_at)
        return start + DELIVERY_PERIOD.total_seconds()


class Publishers:
    """The connections to the broker of a process.

    :param timeout: seconds that publishing one event may take.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        # Connections are not shared with a forked process.
        self._idle: dict[tuple[int, t.Any], collections.deque[_Publisher]] = {}

    def publish(self, app: t.Any, signature: t.Any, event: Event) -> None:
        """Publish a task, and wait for the broker's word that it has it.

        :raises GuardUnavailable: if that does not come.
        """
        idle = self._idle.setdefault((os.getpid(), app), collections.deque())

        try:
            # A connection that has been idle may be broken without anybody knowing.
            publisher = idle.pop()
        except IndexError:
            pass
        else:
            with contextlib.suppress(_Unpublished):
                publisher.publish(signature, event)
                _keep(idle, publisher)
                return

            self.close()

        try:
            publisher = _Publisher(app, self.timeout * _STEP)
            publisher.publish(signature, event)
        except _Unpublished as error:
            kind = type(error.__cause__).__name__
            raise GuardUnavailable(f"The broker did not take the event ({kind}).") from error

        _keep(idle, publisher)

    @contextlib.contextmanager
    def connected(self, app: t.Any) -> c.Iterator[t.Any]:
        """A connection of its own, to look at the broker.

        :raises GuardUnavailable: if there is none within the time limit.
        """
        try:
            publisher = _Publisher(app, self.timeout * _STEP)
        except _Unpublished as error:
            raise GuardUnavailable("The broker is unreachable.") from error.__cause__

        try:
            yield publisher.connection
        finally:
            publisher.close()

    def close(self) -> None:
        """Close the connections of this process that are idle. The next event makes a new one."""
        for (pid, _), idle in list(self._idle.items()):
            while pid == os.getpid() and idle:
                with contextlib.suppress(IndexError):
                    idle.pop().close()


class _Unpublished(Exception):
    """The cause says why."""


class _Publisher:
    """A connection to the broker on which nothing takes longer than it should.

    :param seconds: for each step.
    """

    def __init__(self, app: t.Any, seconds: float) -> None:
        self.connection: t.Any = app.connection_for_write(
            connect_timeout=seconds,
            transport_options={
                "socket_timeout": seconds,  # Redis
                "socket_connect_timeout": seconds,
                # RabbitMQ: without it, a message that the broker never saw counts as sent.
                "confirm_publish": True,
            },
        )
        self._socket: t.Any = None

        with self._translated():
            # Of several brokers each is tried once.
            others = max(len(self.connection.alt) - 1, 0)
            self.connection.ensure_connection(max_retries=others, timeout=2 * seconds)
            self._socket = getattr(self.connection.connection, "sock", None)

            if self._socket is not None:  # amqp bounds the handshake only
                self._socket.settimeout(seconds)

            self.producer = self.connection.Producer()

    def publish(self, signature: t.Any, event: Event) -> None:
        with self._translated():
            signature.apply_async(
                producer=self.producer,
                retry=False,
                serializer="json",
                # A queue that is gone is an error, and not the end of the message.
                mandatory=True,
                # Celery logs this in place of the arguments, which hold the body.
                kwargsrepr=repr({"event_id": event.id}),
            )

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._socket is not None:
                self._socket.settimeout(0.1)

            self.connection.release()

    @contextlib.contextmanager
    def _translated(self) -> c.Iterator[None]:
        errors = (
            kombu.exceptions.OperationalError,
            *self.connection.connection_errors,
            *self.connection.channel_errors,
            OSError,
        )

        try:
            yield
        except errors as error:
            self.close()
            raise _Unpublished from error
        except BaseException:
            self.close()
            raise


def _keep(idle: collections.deque[_Publisher], publisher: _Publisher) -> None:
    if len(idle) < _MAX_IDLE:
        idle.append(publisher)
    else:
        publisher.close()
