"""Every scenario, and a table."""

from __future__ import annotations

import argparse
import pathlib
import shutil
import tempfile
import time

from .catalogue import make_scenarios, NAMES
from .report import print_findings, print_table, write_results
from .scenario import Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a small form, under 90 seconds")
    parser.add_argument("--seed", type=int, default=20260101, help="(default: %(default)s)")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that passes")
    parser.add_argument("--write", action="store_true", help="write tests/faults/RESULTS.md")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sangho-faults-log-"))
    began = time.monotonic()
    results: list[Result] = []

    for scenario in make_scenarios(options.only, options.short, options.seed, folder):
        print(f"{scenario.name} …", flush=True)
        result = scenario.run()
        results.append(result)
        print_findings(result)

    seconds = time.monotonic() - began
    arguments = ["--short"] * options.short + [f"--only {name}" for name in options.only or ()]
    command = " ".join(["tox run -e faults --", *arguments, f"--seed {options.seed}"])
    print_table(results, command, seconds)

    if options.write:
        write_results(results, command, seconds)

    if any(result.failed for result in results):
        print(f"FAILED. The logs are in {folder}")
        return 1

    if options.keep:
        print(f"The logs are in {folder}")
    else:
        shutil.rmtree(folder)

    return 0
