"""The documentation does what it says: ``pytest tests/check_docs.py``, as ``tox run -e docs`` does.

Not collected with the rest, which has no need of the documentation's own requirements.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess
import sys

import pytest

from .blocks import code_of, read_blocks, ROOT
from .docs_page import Page

PAGES = sorted((ROOT / "docs").glob("*.md"))

NOT_RUN: dict[str, dict[str, int]] = {
    "operations.md": {"cron": 1},
    "other-extensions.md": {"nginx": 1},
}
"""Blocks in other languages, by page: what they show is not run by anything here."""

FROM_DOCSTRINGS = {"api.md": 1}
"""The model of a second endpoint, which configuration.md shows as well, and runs."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The one that tox has built, or else a new one."""
    built = os.environ.get("TOX_PACKAGE")

    if built:
        return pathlib.Path(built)

    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    subprocess.run([*pip, "-w", str(folder), str(ROOT)], check=True, timeout=120)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page(
    path: pathlib.Path, wheel: pathlib.Path, valkey_url: str, tmp_path: pathlib.Path
) -> None:
    """Every block of a page is run, or listed above."""
    page = Page(path, tmp_path, wheel, valkey_url)
    shown = [b.language for b in page.blocks if not b.is_hidden and not is_directive(b.language)]
    others = collections.Counter(name for name in shown if name not in ("console", "python"))

    assert others == NOT_RUN.get(path.name, {})
    assert page.run() == len(shown) - others.total()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_block_is_missed(path: pathlib.Path) -> None:
    """Sphinx, which built the pages before, counts as many blocks."""
    html = (ROOT / "docs" / "_build" / "html" / f"{path.stem}.html").read_text(encoding="utf-8")
    shown = [b for b in read_blocks(path) if not b.is_hidden and not is_directive(b.language)]

    assert html.count('<div class="highlight-') == len(shown) + FROM_DOCSTRINGS.get(path.name, 0)


def is_directive(language: str) -> bool:
    """Whether Sphinx makes of the block what it is, such as ``{toctree}``. None shows code."""
    return language.partition(" ")[0] in ("{toctree}", "{eval-rst}", "{include}")


def test_pages_are_found() -> None:
    assert len(PAGES) > 10
    assert sum(len(read_blocks(path)) for path in PAGES) > 50


def test_findings_of_check_are_listed() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    sources = [path.read_text() for path in (ROOT / "flask_sangho_webhooks").rglob("*.py")]
    pattern = re.compile(r"(?:Finding|Defect)\(\s*\"([\w-]+)\"")
    codes = {code for source in sources for code in pattern.findall(source)}

    assert codes
    assert not {code for code in codes if f"`{code}`" not in page}


RECIPES = sorted((ROOT / "tests" / "recipes").glob("[!_]*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_that_of_the_tests(path: pathlib.Path) -> None:
    """What the page shows is the file that is tested on every outcome."""
    assert path.read_text(encoding="utf-8") in code_of(ROOT / "docs" / "monitoring.md", "python")
