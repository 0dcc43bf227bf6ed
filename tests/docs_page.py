"""Runs a page of the documentation from its first code block to its last.

Console blocks are typed into one shell per page, in a folder with the shop of the README's first
block, and what they print is compared with what the page shows (``...`` stands for anything).
Python blocks run in one process, in the order of the page. Comments say what a block needs:

``<!-- file: test_shop.py -->``
    The block is a file, which a later block must import.
``<!-- background: Running on -->``
    The command goes on while the page does. The text is in its output when it is ready.
``<!-- status: 1 -->``
    The last command ends with this status.
``<!-- test`` or ``<!-- sh``, and lines of code
    A block of Python, or of the shell, that is run, but not shown.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import types
import uuid

from .blocks import Block, code_of, commands, read_blocks, ROOT

LIMIT = 120
"""Seconds for one command."""

_CHECKER = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


class Shell:
    """A shell that remembers what was exported and activated, as a terminal does."""

    def __init__(self, folder: pathlib.Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.output = folder.parent / f"{uuid.uuid4().hex}.log"

        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self.process.communicate("kill $(jobs -p) 2>/dev/null; wait; exit\n", timeout=15)

        self.process.kill()
        self.process.wait()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def run(self, command: str) -> tuple[str, int]:
        """What a command prints, and its exit status."""
        start, end = self.output.stat().st_size, uuid.uuid4().hex
        self.send(f"{command}\necho {end} $?")
        printed = self._wait(self.output, rf"{end} (\d+)\n", start, command)
        text, _, status = printed.rpartition(end)
        return text, int(status)

    def start(self, command: str, ready: str) -> None:
        """Run a command in the background until the page has ended."""
        log = self.folder.parent / f"{uuid.uuid4().hex}.log"
        log.touch()
        self.send(f"{command} >{log} 2>&1 &")
        self._wait(log, re.escape(ready), 0, command)

    def _wait(self, path: pathlib.Path, pattern: str, start: int, command: str) -> str:
        deadline = time.monotonic() + LIMIT

        while time.monotonic() < deadline and self.process.poll() is None:
            printed = path.read_bytes()[start:].decode(errors="replace")

            if re.search(pattern, printed):
                return printed

            time.sleep(0.02)

        raise AssertionError(f"{command}\nhas not ended, or is not ready:\n{printed}")


class Page:
    """A page, and a folder to run it in.

    :param wheel: of this checkout, which ``pip install`` takes in place of a published one.
    :param redis_url: of a server, in place of ``redis://localhost:6379/0``.
    """

    def __init__(
        self, path: pathlib.Path, folder: pathlib.Path, wheel: pathlib.Path, redis_url: str
    ) -> None:
        self.path = path
        self.folder = folder / "shop"
        self.folder.mkdir()
        self.blocks = read_blocks(path)
        self.places = {
            "redis://localhost:6379/0": redis_url,
            ":5000": f":{free_port()}",
            ":8000": f":{free_port()}",
        }
        (self.folder / "shop.py").write_text(code_of(ROOT / "README.md", "python")[0])
        constraint = folder / "constraint.txt"
        constraint.write_text(f"flask-sangho-webhooks @ {wheel.as_uri()}\n")
        self.variables = {
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            # For an environment of the page's own. In this one it is installed.
            "CONSTRAINT_TO_THIS_CHECKOUT": str(constraint),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "FLASK_RUN_PORT": self.places[":5000"][1:],
        }

    def run(self) -> int:
        """Run all blocks.

        :return: how many of those that readers see were run.
        """
        files = [block for block in self.blocks if "file" in block.options]
        console = [b for b in self.blocks if b.language in ("console", "sh") or b in files]
        python = [b for b in self.blocks if b.language in ("python", "test") and b not in files]

        with Shell(self.folder, self.variables) as shell:
            for block in console:
                self._type(shell, block)

            self._run_python(python)

        for block in files:
            self._check_import(block)

        return sum(not block.is_hidden for block in [*console, *python])

    def _type(self, shell: Shell, block: Block) -> None:
        code = self._here(block.code)

        if "file" in block.options:
            (self.folder / block.options["file"]).write_text(code, encoding="utf-8")
        elif "background" in block.options:
            (command,) = commands(code)
            shell.start(command[0], block.options["background"])
        elif block.language == "sh":
            printed, status = shell.run(code)
            assert status == 0, f"{self.path.name}:{block.line}\n{printed}"
        else:
            self._type_commands(shell, block, code)

    def _type_commands(self, shell: Shell, block: Block, code: str) -> None:
        typed = commands(code)
        expected = [0] * (len(typed) - 1) + [int(block.options.get("status", 0))]

        for (command, shown), status in zip(typed, expected, strict=True):
            printed, found = shell.run(command)
            printed, shown = self._elsewhere(printed), self._elsewhere(shown)
            where = f"{self.path.name}:{block.line}: {command}\nprinted:\n{printed}"
            assert found == status, f"{where}\nand ended with {found}"
            assert "does not provide the extra" not in printed, where

            if shown:
                assert _CHECKER.check_output(shown, printed, _FLAGS), f"{where}\nnot:\n{shown}"

    def _run_python(self, blocks: list[Block]) -> None:
        if not any(block.language == "python" for block in blocks):
            assert not blocks, f"{self.path.name} tests nothing that it shows."
            return

        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "tests.docs_page", str(self.path)],
            cwd=self.folder,
            env={**self.variables, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}"},
            input=json.dumps([(block.line, self._here(block.code)) for block in blocks]),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith(f"{len(blocks)} blocks were run.\n")

    def _check_import(self, block: Block) -> None:
        module = block.options["file"].removesuffix(".py").replace("/", ".").rpartition(".")[2]
        compiled = list(self.folder.rglob(f"__pycache__/{module}.*.pyc"))
        assert compiled, f"{self.path.name}:{block.line} was saved, and never run."

    def _here(self, text: str) -> str:
        for shown, real in self.places.items():
            text = text.replace(shown, real)

        return text

    def _elsewhere(self, text: str) -> str:
        for shown, real in self.places.items():
            text = text.replace(real, shown)

        return text


def main() -> None:
    """Run blocks of Python, given as JSON, as one module."""
    from . import docs_shop

    module = types.ModuleType("page")
    sys.modules[module.__name__] = module
    shop = docs_shop.new_shop()
    names = {**vars(docs_shop), **vars(shop)}
    module.__dict__.update({n: value for n, value in names.items() if not n.startswith("_")})
    blocks: list[tuple[int, str]] = json.load(sys.stdin)

    for line, code in blocks:
        lines = "\n" * line + code
        exec(compile(lines, sys.argv[1], "exec", dont_inherit=True), module.__dict__)

    sys.stdout.write(f"{len(blocks)} blocks were run.\n")


if __name__ == "__main__":
    main()
