"""What a scenario will send, and what each event does to its handler. A function of the seed."""

from __future__ import annotations

import dataclasses
import json
import random
import typing as t

Behaviour = t.Literal[
    "plain",
    "raises",
    "raises_twice",
    "sleeps",
    "commits",
    "commits_and_raises",
    "rolls_back",
    "removes",
    "retries_later",
    "discards",
]
"""What a handler does, apart from its two writes. What fails does so on its first runs only."""

Point = t.Literal["arrival", "claim", "claimed", "handler", "commit", "committed", "answer"]
"""Where a worker is killed: before, or after, the thing that it is named for."""

POINTS: t.Final[tuple[Point | None, ...]] = (
    None,
    "arrival",  # the request is there
    "claim",  # before the claim
    "claimed",  # after it
    "handler",  # between the two writes
    "commit",  # before COMMIT
    "committed",  # after it
    "answer",  # the answer is made, and not sent
)

SLEEP = 0.8
"""Seconds that a handler sleeps. Who sends such an event waits for less."""

TYPE = "payment_intent.succeeded"
TRANSACTIONAL: t.Final[tuple[Behaviour, ...]] = ("commits", "commits_and_raises")
"""What only a guard in the handlers' own transaction can undo."""

_FORGED = 0xF

Forgery = t.Literal["secret", "stale", "body"]
FORGERIES: t.Final[tuple[Forgery, ...]] = ("secret", "stale", "body")


@dataclasses.dataclass(frozen=True)
class Profile:
    """How much of what a scenario sees."""

    events: int
    dies: int
    """Events whose worker is killed at one of the points, once."""
    deliveries: tuple[int, int] = (3, 5)
    """Of each event, from and to."""
    sleeps: int = 25
    """Events whose first run takes longer than the sender waits."""
    without: tuple[Behaviour, ...] = ()
    points: tuple[Point, ...] = tuple(p for p in POINTS if p is not None)
    forged: float = 0.02
    """Forged deliveries for each event."""


@dataclasses.dataclass(frozen=True)
class PlannedEvent:
    """One event.

    :param effects: how often it may, and must, have its effect.
    """

    id: str
    does: Behaviour
    deliveries: int
    forgery: Forgery | None = None
    created: int = 1780000100

    @property
    def effects(self) -> int:
        return 0 if self.does == "discards" or self.forgery else 1

    @property
    def body(self) -> bytes:
        event = {
            "id": self.id,
            "object": "event",
            "api_version": "2026-01-01",
            "type": TYPE,
            "created": self.created,
            "livemode": True,
            "data": {"object": {"id": f"pi_{self.id[4:]}", "amount": 5000, "does": self.does}},
        }
        return json.dumps(event).encode()


def point_of(event_id: str) -> Point | None:
    """Where the worker of an event dies. It is in the id, which every hook knows."""
    code = int(event_id[4], 16)
    return None if code == _FORGED else POINTS[code]


def make_events(profile: Profile, seed: int, created: int = 1780000100) -> list[PlannedEvent]:
    """The events of a scenario, the forged ones among them.

    :param created: the time of all of them. A queue gives up what is old and fails.
    """
    rng = random.Random(f"events {seed}")
    behaviours: list[Behaviour] = [
        b for b in t.get_args(Behaviour) if b not in ("plain", "sleeps", *profile.without)
    ]
    numbers = list(range(profile.events))
    dying = set(rng.sample(numbers, profile.dies))
    sleeping = set(rng.sample(numbers, profile.sleeps))
    events = []

    for number in numbers:
        does: Behaviour = "sleeps" if number in sleeping else "plain"

        if does == "plain" and rng.random() < 0.3:
            does = rng.choice(behaviours)

        code = POINTS.index(rng.choice(profile.points)) if number in dying else 0
        count = rng.randint(*profile.deliveries)
        events.append(PlannedEvent(_id(code, seed, number), does, count, None, created))

    for number in range(round(profile.events * profile.forged)):
        event_id = _id(_FORGED, seed, number)
        events.append(PlannedEvent(event_id, "plain", 1, rng.choice(FORGERIES), created))

    return events


def _id(code: int, seed: int, number: int) -> str:
    return f"evt_{code:x}{seed & 0xFFFFFFFF:08x}{number:06x}"


def in_order_of_sending(events: list[PlannedEvent], seed: int) -> list[tuple[PlannedEvent, int]]:
    """Every delivery of every event, numbered: mixed up, with duplicates beside each other, soon
    after each other and long after each other.
    """
    rng = random.Random(f"order {seed}")
    keyed: list[tuple[float, PlannedEvent, int]] = []

    for position, event in enumerate(events):
        first = rng.uniform(0, len(events)) if event.forgery else position + rng.uniform(0, 50)

        for number in range(event.deliveries):
            distance = rng.choice((0, 0, rng.uniform(0, 20), rng.uniform(0, len(events) / 2)))
            keyed.append((first + (distance if number else 0), event, number))

    keyed.sort(key=lambda entry: entry[0])
    return [(event, number) for _, event, number in keyed]
