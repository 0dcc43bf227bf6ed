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
import sqlalchemy.orm as sa_orm

from .blocks import code_of, commands, read_blocks, ROOT
from .docs_page import free_port
from .support import Shop

README = ROOT / "README.md"
FRENCH = ROOT / "README.fr.md"


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20

    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return

        time.sleep(0.05)

    raise AssertionError("The shop does not answer.")


@pytest.mark.parametrize("code", code_of(README, "python"))
def test_python_blocks_parse(code: str) -> None:
    ast.parse(code)


def test_test_of_a_handler(tmp_path: pathlib.Path) -> None:
    """The test that the README shows passes against its first block."""
    (tmp_path / "shop.py").write_text(code_of(README, "python")[0], encoding="utf-8")
    (code,) = (code for code in code_of(README, "python") if "def test_fulfil" in code)
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
    (code,) = (code for code in code_of(README, "python") if "send_receipt" in code)
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


@pytest.mark.skipif(shutil.which("curl") is None, reason="The quickstart uses curl.")
def test_quickstart(tmp_path: pathlib.Path) -> None:
    """The first block, saved as a file, grants an order from the deliveries of the second."""
    port = free_port()
    (tmp_path / "shop.py").write_text(code_of(README, "python")[0], encoding="utf-8")
    start, deliver = code_of(README, "console")[:2]
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
        typed = commands(deliver.replace(":5000", f":{port}"))
        script = "\n".join(c.replace("curl ", "curl --silent --show-error ") for c, _ in typed)
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

    assert shown.replace("\n", "") == "".join(shown for _, shown in typed).replace("\n", "")


def without_prose(code: str, language: str) -> str:
    """A block without its comments, which are translated."""
    return re.sub(r" *# .*", "", code) if language == "python" else code


def test_french_readme_shows_the_same() -> None:
    """Code, headings, tables and links are those of the README, in the same order."""
    shown, translated = (
        [(b.language, without_prose(b.code, b.language)) for b in read_blocks(path)]
        for path in (README, FRENCH)
    )

    assert translated == shown
    assert outline(FRENCH) == outline(README)


def outline(path: pathlib.Path) -> list[str]:
    """What has to be the same in any language: levels of headings, rows and lists, and links."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    marks = re.findall(r"^#+(?= )|^\|(?= )|^-(?= )|^<!-- .* -->|\]\([^)#]+", text, re.MULTILINE)
    return [mark for mark in marks if "README" not in mark]


@pytest.mark.parametrize("path", [README, FRENCH], ids=["english", "french"])
def test_links(path: pathlib.Path) -> None:
    """Links lead to files that are there, and to headings in them."""
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", path.read_text(encoding="utf-8"))
    assert len(links) > 20

    for file, anchor in links:
        target = ROOT / file if file else path
        assert target.is_file(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


def anchors(path: pathlib.Path) -> set[str]:
    """The anchors that a forge gives to the headings of a file."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
