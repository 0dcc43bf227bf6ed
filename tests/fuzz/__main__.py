"""The endpoint under random and mutated requests, signed and unsigned: ``python -m tests.fuzz``.

Every answer is compared with the verdict of the official SDK and the README's table of answers.
After each batch, the rows or keys must be those of the verified events that a handler has succeeded
with. Exits with 1 at a finding, and names a file that replays it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import math
import os
import random
import subprocess
import sys
import time

from .worker import say

GUARDS = ("sql", "redis")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="of all engines together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", metavar="FILE", help="the inputs of an earlier finding")
    arguments = parser.parse_args()
    started = time.monotonic()

    if arguments.replay:
        return max(_run(["replay", guard, "--replay", arguments.replay]) for guard in GUARDS)

    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    shares = {"hypothesis": 0.3, "atheris": 0.7}

    if not importlib.util.find_spec("atheris"):
        say("atheris is not installed here: no coverage-guided fuzzing, hypothesis only.")
        shares = {"hypothesis": 1.0}

    jobs = [
        (engine, guard, math.ceil(share * arguments.inputs / len(GUARDS)))
        for engine, share in shares.items()
        for guard in GUARDS
    ]
    commands = [
        [engine, guard, "--inputs", str(inputs), "--seed", str(seed * len(jobs) + number)]
        for number, (engine, guard, inputs) in enumerate(jobs)
    ]

    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        statuses = list(pool.map(_run, commands))

    seconds = time.monotonic() - started
    failed = sum(status != 0 for status in statuses)
    total = sum(inputs for _, _, inputs in jobs)
    verdict = f"{failed} of {len(jobs)} runs FAILED" if failed else "no finding"
    say(f"fuzz: {total} inputs, seed {seed}, {seconds:.0f} s: {verdict}")
    return 1 if failed else 0


def _run(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "tests.fuzz.worker", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    sys.stdout.write(result.stdout)

    if result.returncode:
        sys.stdout.writelines(
            f"{line}\n" for line in result.stderr.splitlines() if not line.startswith("INFO: ")
        )

    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
