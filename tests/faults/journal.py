"""Notes that survive the SIGKILL of the process that makes them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import time
import typing as t


class Journal:
    """Files in a folder that all processes of a scenario append to.

    :param folder: exists.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._files: dict[str, int] = {}

    def note(self, name: str, /, **values: t.Any) -> None:
        """Append a line with the time and the process."""
        line = json.dumps({"time": time.time(), "pid": os.getpid(), **values}) + "\n"

        if name not in self._files:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._files[name] = os.open(self.folder / f"{name}.jsonl", flags, 0o644)

        # One write of less than a page: lines of several processes do not mix.
        os.write(self._files[name], line.encode())

    def once(self, marker: str) -> bool:
        """Whether no process has asked this before."""
        try:
            os.close(os.open(self.folder / "once" / marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False

        return True

    def read(self, name: str) -> list[dict[str, t.Any]]:
        """The lines of one name, in the order in which they were written."""
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file)

        self._files.clear()


def new_journal(folder: pathlib.Path) -> Journal:
    """A journal in a folder that is made."""
    (folder / "once").mkdir(parents=True)
    return Journal(folder)
