"""The example shop's page in a real browser: each button does what it says."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .conftest import PHONE, Visit

BUTTONS = ["Pay", "Pay, delivered five times at once", "Tampered", "Handler fails once"]
PROCESSED = ("200", "processed")

CONTRAST = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const luminance = (color) => {
    const [red, green, blue] = numbers(color).map(linear);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const isTransparent = (color) => numbers(color)[3] === 0;
  const ratios = {};

  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].find((node) => node.nodeType === 3 && node.data.trim());

    if (!text) continue;

    let behind = element;
    while (isTransparent(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
    const [dark, light] = pair.map(luminance).sort((one, other) => one - other);
    ratios[`${element.tagName} ${text.data.trim()}`] = (light + 0.05) / (dark + 0.05);
  }

  return ratios;
}"""


def test_pay(visit: Visit) -> None:
    shop = visit()
    expect(shop.page.get_by_role("status")).to_contain_text("Press a button")
    assert shop.order("A-1001")[3:] == ["open", "0 ×"]

    shop.press("Pay")

    assert "A-1001 was paid exactly once" in shop.verdict
    assert shop.answers() == [PROCESSED]
    assert shop.order("A-1001")[3:] == ["paid", "1 ×"]
    assert shop.ledger() == ["A-1001"]
    shop.screenshot("pay")


def test_pay_delivered_five_times_at_once(visit: Visit) -> None:
    shop = visit()

    shop.press("Pay, delivered five times at once")

    answers = shop.answers()
    assert len(answers) >= 5
    assert answers.count(PROCESSED) == 1
    assert {word for _, word in answers} <= {"processed", "duplicate", "in progress", "unavailable"}
    assert "A-1001 was paid exactly once: 1 row in the ledger." in shop.verdict
    assert shop.ledger() == ["A-1001"]
    shop.screenshot("five-at-once")


def test_tampered(visit: Visit) -> None:
    shop = visit()

    shop.press("Tampered")

    assert shop.answers() == [("401", "rejected")]
    assert "A-1001 stays open: no row in the ledger." in shop.verdict
    assert shop.order("A-1001")[3:] == ["open", "0 ×"]
    assert shop.ledger() == []
    shop.screenshot("tampered")


def test_handler_fails_once(visit: Visit) -> None:
    shop = visit()

    shop.press("Handler fails once")

    assert shop.answers() == [("500", "failed"), PROCESSED]
    assert "A-1004 was paid exactly once" in shop.verdict
    assert shop.order("A-1004")[3:] == ["paid", "1 ×"]
    assert shop.ledger() == ["A-1004"]
    shop.screenshot("handler-fails-once")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_one_after_the_other(visit: Visit, scheme: str) -> None:
    shop = visit(color_scheme=scheme)
    shop.screenshot(f"start-{scheme}")

    for label in BUTTONS:
        shop.press(label)

    assert sorted(shop.ledger()) == ["A-1001", "A-1002", "A-1004"]
    shop.screenshot(f"all-{scheme}")

    shop.press("Reset the shop")

    assert shop.ledger() == []
    assert "Press a button" in shop.verdict


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(visit: Visit, scheme: str) -> None:
    shop = visit(viewport=PHONE, is_mobile=True, has_touch=True, color_scheme=scheme)
    shop.screenshot(f"phone-start-{scheme}")

    for label in BUTTONS:
        button = shop.page.get_by_role("button", name=label, exact=True)
        button.scroll_into_view_if_needed()
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44
        assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE["width"]
        button.tap()
        shop.wait()
        expect(shop.page.get_by_role("status")).to_be_in_viewport()

    assert shop.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    shop.screenshot(f"phone-all-{scheme}")


def test_keyboard(visit: Visit) -> None:
    shop = visit()
    focused = shop.page.locator(":focus")

    shop.page.keyboard.press("Tab")
    expect(focused).to_have_accessible_name("Pay")
    expect(focused).to_have_accessible_description("One event, delivered once.")
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    shop.page.keyboard.press("Enter")
    expect(shop.page.get_by_role("status")).to_contain_text("A-1001 was paid exactly once")
    shop.wait()

    expect(focused).to_have_accessible_name("Pay")
    shop.page.keyboard.press("Tab")
    expect(focused).to_have_accessible_name("Pay, delivered five times at once")
    shop.page.keyboard.press("Space")
    expect(shop.page.get_by_role("status")).to_contain_text("A-1002 was paid exactly once")
    shop.wait()


def test_button_that_is_pressed_twice_plays_once(visit: Visit) -> None:
    shop = visit()

    shop.page.get_by_role("button", name="Pay", exact=True).dblclick()
    shop.wait()

    assert shop.ledger() == ["A-1001"]


def test_verdict_is_announced(visit: Visit) -> None:
    """A screen reader reads what is put into an element that was there before."""
    shop = visit()
    status = shop.page.get_by_role("status")
    expect(status).to_have_attribute("aria-live", "polite")
    status.evaluate("e => { e.wasThere = true }")

    shop.press("Tampered")

    assert status.evaluate("e => e.wasThere")


def test_page_that_is_opened_meanwhile_sees_the_end(visit: Visit) -> None:
    shop = visit()
    shop.page.get_by_role("button", name="Handler fails once", exact=True).click()
    expect(shop.page.get_by_text("The handler raised")).to_be_visible()

    shop.page.reload()
    shop.wait()

    assert shop.answers() == [("500", "failed"), PROCESSED]


def test_without_script(visit: Visit) -> None:
    shop = visit(java_script_enabled=False)

    shop.page.get_by_role("button", name="Handler fails once", exact=True).click()

    expect(shop.page.get_by_role("status")).to_contain_text("A-1004 was paid exactly once")
    assert shop.ledger() == ["A-1004"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(visit: Visit, scheme: str) -> None:
    """All text has at least the ratio 4.5 that WCAG asks for."""
    shop = visit(color_scheme=scheme)

    for label in BUTTONS:
        shop.press(label)

    ratios: dict[str, float] = shop.page.evaluate(CONTRAST)
    assert len(ratios) > 20
    assert {text: ratio for text, ratio in ratios.items() if ratio < 4.5} == {}


def test_shop_that_is_gone(visit: Visit) -> None:
    shop = visit()
    shop.page.route("**/play/*", lambda route: route.fulfill(status=503))

    shop.press("Pay")

    assert "Look at the terminal" in shop.verdict
    assert len(shop.complaints) == 1
    assert "503" in shop.complaints.pop()
