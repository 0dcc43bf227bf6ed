"""The example shop as a fresh clone serves it, and a Chromium that looks at it."""

from __future__ import annotations

import collections.abc as c
import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing as t

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, Page, Request, sync_playwright

ROOT = pathlib.Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=15_000)


def chromium() -> str:
    """The path of a Chromium. Without one, skip on a laptop, fail where everything has to run."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")

    if path:
        return path

    message = "There is no chromium. Install it, or set CHROMIUM to the path of one."

    if os.environ.get("CI"):
        pytest.fail(message)

    pytest.skip(message)


@pytest.fixture(scope="session")
def browser() -> c.Iterator[Browser]:
    path = chromium()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shop_url(tmp_path_factory: pytest.TempPathFactory) -> c.Iterator[str]:
    """Where a copy of the shop is served that began with no setting and no database."""
    tmp_path = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("instance", "__pycache__")
    shutil.copytree(ROOT / "example_app", tmp_path / "example_app", ignore=ignored)
    command = [sys.executable, "-m", "flask", "--app", "example_app", "run", "--port", "0"]
    settings = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FLASK_", "EXAMPLE_", "WERKZEUG_"))
    }
    log = tmp_path / "flask.log"

    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            yield wait_for_url(process, log)
        finally:
            process.terminate()


def wait_for_url(process: subprocess.Popen[bytes], log: pathlib.Path) -> str:
    """The address that ``flask run`` names in its log."""
    for _ in range(150):
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

        if found:
            return found[0]

        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue

        break

    pytest.fail(f"flask run does not serve the shop:\n{log.read_text()}")


class Visitor:
    """Somebody who looks at the shop, and what the browser complained about meanwhile."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._note)
        self.page.goto(url)

    def _note(self, request: Request) -> None:
        self.requests.append(request.url)

    def press(self, label: str) -> None:
        """Press a button and wait until everything is delivered."""
        self.page.get_by_role("button", name=label, exact=True).click()
        self.wait()

    def wait(self) -> None:
        expect(self.page.locator("[aria-disabled=true]")).to_have_count(0)
        expect(self.page.locator("#state")).not_to_have_attribute("data-state", "running")

    @property
    def verdict(self) -> str:
        return self.page.get_by_role("status").inner_text()

    def answers(self) -> list[tuple[str, str]]:
        """Status and word of each answer of the scene that was played last."""
        rows = self.page.locator(".deliveries table").first.locator("tr:has(td)").all()
        return [
            (row.locator(".answer").inner_text(), row.locator("b").inner_text()) for row in rows
        ]

    def order(self, reference: str) -> list[str]:
        """The cells of an order."""
        row = self.page.get_by_role("row").filter(has_text=re.compile(rf"^{reference}"))
        return row.locator("td").all_inner_texts()

    def ledger(self) -> list[str]:
        """The orders in the ledger, newest first."""
        table = self.page.get_by_role("region", name=re.compile("^Ledger"))
        return table.locator("td:nth-child(2)").all_inner_texts()

    def screenshot(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)


Visit = c.Callable[..., Visitor]


@pytest.fixture
def visit(browser: Browser, shop_url: str) -> c.Iterator[Visit]:
    """Open the shop as it is in the beginning, with options of Playwright's ``new_context``.

    Afterwards there must be no complaint in a console, and no request to another host.
    """
    visitors: list[Visitor] = []

    def open_shop(**options: t.Any) -> Visitor:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        assert context.request.post(f"{shop_url}/reset").ok
        visitors.append(Visitor(context, shop_url))
        return visitors[-1]

    yield open_shop

    for visitor in visitors:
        visitor.page.context.close()
        assert visitor.complaints == []
        assert visitor.requests
        assert [url for url in visitor.requests if not url.startswith(f"{shop_url}/")] == []
