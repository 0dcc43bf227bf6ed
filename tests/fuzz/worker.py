"""One engine on one guard, in a process of its own: ``python -m tests.fuzz.worker``."""

from __future__ import annotations

import argparse
import collections.abc as c
import dataclasses
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import traceback
import typing as t

MAX_GROWTH = 64
"""MiB that the peak of a process's memory may grow by, from a tenth of its inputs to the end."""

CHUNK = 2_500
"""Inputs of one run of hypothesis, which keeps all of a run in memory."""


class Run:
    """Counts inputs, watches the memory, and ends the process at a finding."""

    def __init__(self, target: t.Any, label: str, inputs: int) -> None:
        self.target = target
        self._label = label
        self.inputs = inputs
        self._start: float | None = None

    def deliver(self, delivery: t.Any) -> None:
        try:
            self.target.deliver(delivery)
        except Exception as error:
            self._stop(error)

        if self._start is None and self.target.inputs >= self.inputs // 10:
            self._start = peak()

    def finish(self) -> t.NoReturn:
        target = self.target

        try:
            target.check()
        except Exception as error:
            self._stop(error)

        growth = peak() - (self._start or 0)
        kinds = ", ".join(f"{name} {count}" for name, count in target.seen.most_common())
        counts = f"{target.inputs} inputs, {target.verified} verified"
        say(f"{self._label}: {counts}, peak memory {growth:+.1f} MiB")
        say(f"  {kinds}")

        if growth > MAX_GROWTH:
            say(f"FINDING {self._label}: memory grew by {growth:.1f} MiB, more than {MAX_GROWTH}.")

        leave(1 if growth > MAX_GROWTH else 0)

    def _stop(self, error: Exception) -> t.NoReturn:
        say(f"FINDING {self._label}, input {self.target.inputs}: {error}")

        if error.__cause__ is not None or type(error).__name__ != "Finding":
            say("".join(traceback.format_exception(error)))

        handle, path = tempfile.mkstemp(prefix="sangho-fuzz-", suffix=".txt")

        with open(handle, "w", encoding="ascii") as file:
            file.writelines(f"{delivery.dump()}\n" for delivery in self.target.batch)

        last = self.target.batch[-1]
        say(f"  the last input: {dataclasses.replace(last, body=last.body[:500])}")
        say(f"  again: python -m tests.fuzz --replay {path}")
        leave(1)


def peak() -> float:
    """MiB of memory that the process has had at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_clean_up: list[c.Callable[[], object]] = []


def leave(status: int) -> t.NoReturn:
    """End the process, which libFuzzer would not let end by itself."""
    for function in reversed(_clean_up):
        function()

    sys.stdout.flush()
    os._exit(status)


def with_hypothesis(run: Run, seed: int) -> None:
    """Deliver what hypothesis makes up."""
    import hypothesis
    from hypothesis import strategies as st

    from .generate import delivery
    from .sources import Drawn

    @st.composite
    def deliveries(draw: st.DrawFn) -> t.Any:
        return delivery(Drawn(draw))

    for chunk in range(seed * 1_000, seed * 1_000 + 1_000):
        if run.target.inputs >= run.inputs:
            break

        @hypothesis.seed(chunk)
        @hypothesis.settings(
            max_examples=min(CHUNK, run.inputs - run.target.inputs),
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(deliveries())
        def deliver(made: t.Any) -> None:
            run.deliver(made)

        deliver()

    run.finish()


def with_atheris(make: c.Callable[[], Run], seed: int) -> None:
    """Deliver what libFuzzer makes of the coverage that it sees."""
    import atheris

    with atheris.instrument_imports(include=["flask_sangho_webhooks", "werkzeug", "flask"]):
        import flask_sangho_webhooks  # noqa: F401

    from .generate import delivery
    from .sources import Read

    run = make()

    def deliver(data: bytes) -> None:
        run.deliver(delivery(Read(data)))

        if run.target.inputs >= run.inputs:
            run.finish()

    folder = pathlib.Path(tempfile.mkdtemp(prefix="sangho-fuzz-corpus-"))
    _clean_up.append(lambda: shutil.rmtree(folder))
    choice = random.Random(seed)

    for number in range(50):
        (folder / str(number)).write_bytes(choice.randbytes(choice.randint(20, 300)))

    options = [f"-seed={seed}", f"-runs={run.inputs}", "-max_len=600", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(folder)], deliver)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=("hypothesis", "atheris", "replay"))
    parser.add_argument("guard", choices=("sql", "redis"))
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = tempfile.TemporaryDirectory(prefix="sangho-fuzz-")
    _clean_up.append(folder.cleanup)

    def make() -> Run:
        from .stores import target

        manager = target(arguments.guard, pathlib.Path(folder.name))
        _clean_up.append(lambda: manager.__exit__(None, None, None))
        label = f"{arguments.engine} on {arguments.guard}"
        return Run(manager.__enter__(), label, arguments.inputs)

    if arguments.engine == "atheris":
        with_atheris(make, arguments.seed)
    elif arguments.engine == "hypothesis":
        with_hypothesis(make(), arguments.seed)
    else:
        from .delivery import Delivery

        run = make()

        for line in arguments.replay.read_text().split():
            run.deliver(Delivery.load(line))

        run.finish()


if __name__ == "__main__":
    main()
