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
import types
import uuid

import pytest
import redis
import sqlalchemy.orm as sa_orm

from .support import Shop, TYPE

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


def test_test_of_a_handler(tmp_path: pathlib.Path) -> None:
    """The test that the README shows passes against its first block."""
    (tmp_path / "shop.py").write_text(blocks("python")[0], encoding="utf-8")
    (code,) = (code for code in blocks("python") if "def test_fulfil" in code)
    (tmp_path / "test_shop.py").write_text(code, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "1 passed" in result.stdout, result.stdout


def test_receipt_is_sent(sqlite_shop: Shop) -> None:
    """The handler that the README shows under ``on_commit``, as it stands."""
    shop = sqlite_shop
    (code,) = (code for code in blocks("python") if "send_receipt" in code)
    sent: list[int] = []

    class Order(shop.db.Model):  # type: ignore[name-defined, misc]
        id: sa_orm.Mapped[int] = sa_orm.mapped_column(primary_key=True)
        status: sa_orm.Mapped[str] = sa_orm.mapped_column(default="open")

    with shop.app.app_context():
        shop.db.create_all()
        shop.db.session.add(Order(id=1))
        shop.db.session.commit()

    names = {"webhooks": shop.webhooks, "db": shop.db, "Order": Order, "send_receipt": sent.append}
    exec(code, names)

    assert shop.deliver().json == {"received": True}
    assert sent == [1]


def test_rq(sqlite_url: str, valkey_url: str) -> None:
    """The queue that the README shows, with a worker of RQ that works until nothing is left."""
    rq = pytest.importorskip("rq")
    (code,) = (code for code in blocks("python") if "class RQQueue" in code)
    module = types.ModuleType("readme_rq")
    exec(code, module.__dict__)
    sys.modules[module.__name__] = module
    module.run_event.__module__ = module.__name__

    with redis.Redis.from_url(valkey_url) as client:
        jobs = rq.Queue(uuid.uuid4().hex, connection=client)

        with Shop(sqlite_url, queue=module.RQQueue(jobs)) as shop:
            shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
            answers = [shop.deliver().json, shop.deliver().json]

            with shop.app.app_context():
                rq.SimpleWorker([jobs], connection=client).work(burst=True)

            assert answers == [{"received": True, "queued": True}] * 2
            assert shop.grants() == ["evt_1"]
            assert shop.deliver().json == {"received": True, "duplicate": True}

        jobs.delete(delete_jobs=True)


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
