"""What the processes of a scenario are told, in their environment."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import typing as t

VARIABLE = "SANGHO_FAULTS_SETTINGS"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

Receiver = t.Literal["sql", "redis", "celery", "checks_then_records", "records_then_handles"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one server, until it is started again."""

    folder: str
    """Of the journal."""
    receiver: Receiver
    database_url: str
    secrets: tuple[str, ...]
    redis_url: str = ""
    broker_url: str = ""
    queue: str = ""
    lease: float = 3

    def environment(self) -> dict[str, str]:
        """That of this process, with the settings."""
        own = {k: v for k, v in os.environ.items() if not k.startswith(("FLASK_", "GUNICORN_"))}
        return {**own, VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def load(cls) -> Settings:
        return cls(**json.loads(os.environ[VARIABLE]))
