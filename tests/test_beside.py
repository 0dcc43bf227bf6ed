"""Other extensions on the same app, set up as their documentation shows: deliveries get through,
the rest of the app stays protected, and what is not processed is never answered 2xx.
"""

from __future__ import annotations

import collections.abc as c
import typing as t

import pytest
from flask import Flask, request
from flask.typing import ResponseReturnValue
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from flask_login import current_user, LoginManager, UserMixin
from flask_migrate import Migrate  # type: ignore[import-untyped]
from flask_talisman import Talisman
from flask_wtf import CSRFProtect  # type: ignore[import-untyped]
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_sangho_webhooks import Event

from .support import Shop, TYPE

RECEIVED = {"received": True}
SetUp = c.Callable[[Flask], object]


def page(app: Flask) -> None:
    """A route of the app's own."""

    @app.route("/orders", methods=["GET", "POST"])
    def orders() -> str:
        return "orders"


@pytest.fixture(params=["before", "after"])
def make(request: pytest.FixtureRequest, sqlite_url: str) -> c.Iterator[c.Callable[[SetUp], Shop]]:
    """Make a shop with something beside the extension, set up before it and after it in turn."""
    shops: list[Shop] = []

    def make(set_up: SetUp) -> Shop:
        is_before = request.param == "before"
        shop = Shop(sqlite_url, beside=set_up if is_before else None)
        page(shop.app)

        if not is_before:
            set_up(shop.app)

        @shop.webhooks.on(TYPE)
        def grant(event: Event) -> None:
            shop.grant(event.id)

        shops.append(shop.__enter__())
        return shop

    yield make

    for shop in shops:
        shop.__exit__()


def status(shop: Shop, method: str = "GET", **options: t.Any) -> int:
    """Of the app's own route."""
    return shop.app.test_client().open("/orders", method=method, **options).status_code


# ------------------------------------------------------------------- Flask-WTF


def csrf(app: Flask) -> None:
    app.secret_key = "test"
    CSRFProtect().init_app(app)


def test_csrf_protection(make: c.Callable[[SetUp], Shop]) -> None:
    shop = make(csrf)

    assert shop.deliver().json == RECEIVED
    assert (status(shop, "GET"), status(shop, "POST")) == (200, 400)
    assert shop.grants() == ["evt_1"]


# ----------------------------------------------------------------- Flask-Login


class User(UserMixin):  # type: ignore[misc]
    id = "1"


def login_required(*public: str) -> SetUp:
    """Demand a login for everything but some endpoints."""

    def set_up(app: Flask) -> None:
        app.secret_key = "test"
        manager = LoginManager(app)
        manager.login_view = "login"

        @manager.user_loader  # type: ignore[untyped-decorator]
        def load(user_id: str) -> User | None:
            return User() if user_id == "1" else None

        @app.route("/login")
        def login() -> str:
            return "login"

        @app.before_request
        def demand_login() -> ResponseReturnValue | None:
            if current_user.is_authenticated or request.endpoint in ("login", "static", *public):
                return None

            return t.cast(ResponseReturnValue, manager.unauthorized())

    return set_up


def test_login_hook_with_the_endpoint_exempt(make: c.Callable[[SetUp], Shop]) -> None:
    shop = make(login_required("sangho_webhooks.receive"))

    assert shop.deliver().json == RECEIVED
    assert shop.deliver(path="/webhook/").json == {**RECEIVED, "duplicate": True}
    assert shop.deliver("evt_2", secret="whsec_other").status_code == 401
    assert status(shop) == 302
    assert shop.grants() == ["evt_1"]


def test_login_hook_that_forgets_the_endpoint(make: c.Callable[[SetUp], Shop]) -> None:
    """Sangho takes a redirect to the login page for a failure, and delivers again."""
    shop = make(login_required())
    response = shop.deliver()

    assert (response.status_code, response.location) == (302, "/login?next=%2Fwebhook")
    assert (shop.grants(), shop.recorded()) == ([], [])


# -------------------------------------------------------------- Flask-Talisman


def behind_a_proxy(app: Flask) -> None:
    app.wsgi_app = ProxyFix(app.wsgi_app, x_proto=1, x_host=1)  # type: ignore[method-assign]
    Talisman(app)


HTTPS = {"X-Forwarded-Proto": "https"}


def test_forced_https_behind_a_proxy_that_names_the_protocol(
    make: c.Callable[[SetUp], Shop],
) -> None:
    shop = make(behind_a_proxy)
    response = shop.deliver(headers=HTTPS)

    assert response.json == RECEIVED
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert status(shop, headers=HTTPS) == 200
    assert shop.grants() == ["evt_1"]


@pytest.mark.parametrize("headers", [{}, {"X-Forwarded-Proto": "http"}])
def test_forced_https_without_it(make: c.Callable[[SetUp], Shop], headers: dict[str, str]) -> None:
    shop = make(behind_a_proxy)
    response = shop.deliver(headers=headers)

    assert (response.status_code, response.location) == (302, "https://localhost/webhook")
    assert (shop.grants(), shop.recorded()) == ([], [])


def test_exempt_from_forced_https(sqlite_url: str) -> None:
    """For a Sangho that reaches the app over a private network, without TLS."""
    with Shop(sqlite_url) as shop:
        page(shop.app)
        shop.webhooks.on(TYPE)(lambda event: shop.grant(event.id))
        talisman = Talisman(shop.app)
        talisman(force_https=False)(shop.app.view_functions["sangho_webhooks.receive"])

        assert shop.deliver().json == RECEIVED
        assert status(shop) == 302


# --------------------------------------------------------------- Flask-Limiter


def limited(app: Flask) -> Limiter:
    limiter = Limiter(
        get_remote_address, app=app, default_limits=["2 per hour"], storage_uri="memory://"
    )
    app.extensions["test_limiter"] = limiter
    return limiter


def statuses(shop: Shop, count: int) -> list[int]:
    return [shop.deliver(f"evt_{number}").status_code for number in range(count)]


def test_rate_limit(make: c.Callable[[SetUp], Shop]) -> None:
    """What is beyond the limit is delivered again, and processed then."""
    shop = make(limited)

    assert statuses(shop, 4) == [200, 200, 429, 429]
    assert shop.grants() == shop.recorded() == ["evt_0", "evt_1"]

    shop.app.extensions["test_limiter"].reset()
    assert shop.deliver("evt_2").json == RECEIVED


def test_exempt_from_the_rate_limit(make: c.Callable[[SetUp], Shop]) -> None:
    shop = make(limited)
    shop.app.extensions["test_limiter"].exempt(shop.webhooks.blueprint)

    assert statuses(shop, 4) == [200] * 4
    assert [status(shop) for _ in range(3)] == [200, 200, 429]


# ------------------------------------------------------------ all at once


def everything(app: Flask) -> None:
    csrf(app)
    login_required("sangho_webhooks.receive")(app)
    behind_a_proxy(app)
    limited(app)


def test_all_of_them_at_once(make: c.Callable[[SetUp], Shop]) -> None:
    """Flask-Migrate alone, with its commands, is in test_migrate.py."""
    shop = make(everything)
    Migrate(shop.app, shop.db)
    shop.app.extensions["test_limiter"].exempt(shop.webhooks.blueprint)

    @shop.webhooks.on("payout.failed")
    def fail(event: Event) -> None:
        shop.grant("lost")
        raise ValueError

    answers = [shop.deliver(f"evt_{number}", headers=HTTPS).json for number in (1, 2, 3, 3)]
    assert answers == [RECEIVED, RECEIVED, RECEIVED, {**RECEIVED, "duplicate": True}]
    assert shop.deliver("evt_4", "payout.failed", headers=HTTPS).status_code == 500
    assert shop.deliver("evt_5", secret="whsec_other", headers=HTTPS).status_code == 401
    assert shop.grants() == shop.recorded() == ["evt_1", "evt_2", "evt_3"]
