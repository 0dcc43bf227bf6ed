"""The README does what it says."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    """The code blocks of a language, dedented, in order."""
    pattern = re.compile(rf"^( *)```{language}\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
    return [
        re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        for indent, code in pattern.findall(README.read_text(encoding="utf-8"))
    ]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20

    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return

        time.sleep(0.05)

    raise AssertionError("The shop does not answer.")


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_parse(code: str) -> None:
    ast.parse(code)


@pytest.mark.skipif(shutil.which("curl") is None, reason="The quickstart uses curl.")
def test_quickstart(tmp_path: pathlib.Path) -> None:
    """The first block, saved as a file, grants an order from the deliveries of the second."""
    port = free_port()
    (tmp_path / "shop.py").write_text(blocks("python")[0], encoding="utf-8")
    start, deliver = blocks("console")[:2]
    settings = dict(re.findall(r"export (\w+)=(\S+)", start))
    environment = {
        **os.environ,
        **settings,
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "flask", "--app", "shop", "run", "--port", str(port)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    try:
        wait_for(port, server)
        lines = deliver.replace(":5000", f":{port}").splitlines()
        commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        script = "\n".join(c.replace("curl ", "curl --silent --show-error ") for c in commands)
        shown = subprocess.run(
            ["sh", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    finally:
        server.terminate()
        server.wait(10)

    assert shown.replace("\n", "") == "".join(line for line in lines if not line.startswith("$ "))
