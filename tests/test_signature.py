"""Verdicts on signatures, side by side with those of the official SDK."""

from __future__ import annotations

import collections
import itertools
import json
import time
import types
import typing as t

import pytest
import sangho.resources.webhooks as sdk  # type: ignore[import-untyped]
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from sangho import SanghoError

from flask_sangho_webhooks import Event, PayloadError, SignatureError
from flask_sangho_webhooks.signature import verify
from flask_sangho_webhooks.testing import sign

from .support import event_body

NOW = 1_780_000_000
NEW, OLD, FOREIGN = "whsec_new", "whsec_old", "whsec_foreign"
SECRETS = (NEW, OLD)
BODY = event_body(event_type="kyc.updated", data={"object": {"business_name": "Café Épicé"}})
EXAMPLES = 20_000

Verdict = tuple[str, int | None]

VALID: Verdict = ("valid", 200)
MALFORMED: Verdict = ("malformed", 400)
EXPIRED: Verdict = ("expired", 400)
MISMATCH: Verdict = ("mismatch", 401)
INVALID: Verdict = ("invalid_payload", 400)


@pytest.fixture
def frozen_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads the time NOW from its clock."""
    monkeypatch.setattr(sdk, "time", types.SimpleNamespace(time=lambda: float(NOW)))


def ours(
    body: bytes,
    header: str | None,
    secrets: tuple[str, ...] = SECRETS,
    tolerance: float = 300,
) -> tuple[Verdict, t.Any]:
    try:
        verify(body, header, secrets, tolerance, now=float(NOW))
        return VALID, Event.from_body(body).payload
    except (SignatureError, PayloadError) as error:
        return (error.reason, error.status), str(error)


def theirs(
    body: bytes,
    header: str | None,
    secrets: tuple[str, ...] = SECRETS,
    tolerance: float = 300,
) -> tuple[Verdict, t.Any]:
    """The SDK's verdict, or the name of the exception that it fails with."""
    try:
        return VALID, sdk.Webhooks.construct_event(body, header, secrets, tolerance)
    except SanghoError as error:
        return (getattr(error, "reason", error.code), error.status_code), str(error)
    except Exception as error:
        return (type(error).__name__, None), str(error)


def v1(secret: str = NEW, timestamp: int = NOW, body: bytes = BODY) -> str:
    """One ``v1=…`` of a header."""
    return sign(body, secret, timestamp).partition(",")[2]


@pytest.mark.usefixtures("frozen_sdk")
@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        pytest.param(sign(BODY, NEW, NOW), VALID, id="valid"),
        pytest.param(sign(BODY + b" ", NEW, NOW), MISMATCH, id="altered body"),
        pytest.param(sign(BODY, FOREIGN, NOW), MISMATCH, id="wrong secret"),
        pytest.param(f"t={NOW},{v1(timestamp=NOW - 1)}", MISMATCH, id="altered timestamp"),
        pytest.param(sign(BODY, NEW, NOW - 3600), EXPIRED, id="expired"),
        pytest.param(sign(BODY, NEW, NOW + 3600), EXPIRED, id="from the future"),
        pytest.param(sign(BODY, NEW, NOW - 300), VALID, id="just in time"),
        pytest.param(sign(BODY, NEW, NOW - 301), EXPIRED, id="just too late"),
        pytest.param(sign(BODY, NEW, NOW + 300), VALID, id="just not too early"),
        pytest.param(sign(BODY, NEW, NOW + 301), EXPIRED, id="just too early"),
        pytest.param(None, MALFORMED, id="none"),
        pytest.param("", MALFORMED, id="empty"),
        pytest.param("anything", MALFORMED, id="no pairs"),
        pytest.param("t=abc,v1=deadbeef", MALFORMED, id="t is no number"),
        pytest.param(f"t={NOW}", MALFORMED, id="no v1"),
        pytest.param("v1=deadbeef", MALFORMED, id="no t"),
        pytest.param("t=,v1=", MALFORMED, id="both empty"),
        pytest.param(f"t=-{NOW},{v1()}", MALFORMED, id="signed number"),
        pytest.param(f"t={NOW}.0,{v1()}", MALFORMED, id="decimal number"),
        pytest.param(f"t=x,t={NOW},{v1()}", MALFORMED, id="one t is no number"),
        pytest.param(f"t={NOW},{v1(FOREIGN)},{v1()}", VALID, id="second v1"),
        pytest.param(f"t={NOW},{v1()},{v1(FOREIGN)}", VALID, id="first v1"),
        pytest.param(f"t={NOW},{v1(OLD)}", VALID, id="second secret"),
        pytest.param(f"t={NOW},v1=,{v1()}", VALID, id="empty v1 beside another"),
        pytest.param(f"t=1,t={NOW},{v1()}", VALID, id="the later t counts"),
        pytest.param(f" t = {NOW} , v0=x, {v1()} ,", VALID, id="spaces and unknown keys"),
        pytest.param(f"{v1()},t=00{NOW}", VALID, id="the number is signed as it prints"),
        pytest.param(
            f"t=\uff11\uff17\uff18{str(NOW)[3:]},{v1()}", VALID, id="digits of another script"
        ),
        pytest.param(f"t={NOW},v1={v1()[3:].upper()}", MISMATCH, id="upper case"),
        pytest.param(f"t={NOW},{v1()[:-1]}", MISMATCH, id="cut short"),
        pytest.param(f"t={NOW},{v1()}0", MISMATCH, id="a digit too many"),
        pytest.param(f"t={NOW},{v1()}\n", VALID, id="line break behind it"),
        pytest.param(f"t={NOW},{v1()},t=x", MALFORMED, id="another t behind it"),
        pytest.param(f"t={NOW}0,{v1()}", EXPIRED, id="t of one more digit"),
        pytest.param(f"t={NOW}{'0' * 9},{v1()}", EXPIRED, id="t of nine more digits"),
        pytest.param(f"T={NOW},{v1()}", MALFORMED, id="upper-case key"),
    ],
)
def test_verdict_is_the_official_one(header: str | None, verdict: Verdict) -> None:
    assert ours(BODY, header)[0] == verdict
    assert theirs(BODY, header)[0] == verdict


@pytest.mark.usefixtures("frozen_sdk")
@pytest.mark.parametrize(("tolerance", "verdict"), [(300, EXPIRED), (900, VALID)])
def test_tolerance_can_be_changed(tolerance: float, verdict: Verdict) -> None:
    header = sign(BODY, NEW, NOW - 600)

    assert ours(BODY, header, tolerance=tolerance)[0] == verdict
    assert theirs(BODY, header, tolerance=tolerance)[0] == verdict


@pytest.mark.usefixtures("frozen_sdk")
@pytest.mark.parametrize("secrets", [(NEW,), (), ("",)])
def test_unknown_secret_is_a_mismatch(secrets: tuple[str, ...]) -> None:
    header = f"t={NOW},{v1(OLD)},{v1('')}"

    assert ours(BODY, header, secrets)[0] == MISMATCH
    assert theirs(BODY, header, secrets)[0] == MISMATCH


@pytest.mark.usefixtures("frozen_sdk")
@pytest.mark.parametrize("body", [b"not JSON", b"", b"{", b"\xff\xfe", b'{"id": "evt_\xe9"}'])
def test_signed_body_that_is_not_json(body: bytes) -> None:
    header = sign(body, NEW, NOW)

    assert ours(body, header)[0] == INVALID
    assert theirs(body, header)[0] == INVALID


@pytest.mark.usefixtures("frozen_sdk")
@pytest.mark.parametrize(
    ("header", "failure", "verdict"),
    [
        pytest.param(f"t=²,{v1()}", "ValueError", MALFORMED, id="t is a superscript"),
        pytest.param(f"t={'9' * 5000},{v1()}", "ValueError", MALFORMED, id="t of 5,000 digits"),
        pytest.param(f"t={'9' * 400},{v1()}", "OverflowError", MALFORMED, id="t of 400 digits"),
        pytest.param(f"t={NOW},v1=é", "TypeError", MISMATCH, id="non-ASCII v1"),
        pytest.param(f"t={NOW},v1=\udce9", "TypeError", MISMATCH, id="undecodable v1"),
        pytest.param(f"t={NOW},v1=é,{v1()}", "TypeError", VALID, id="valid v1 after it"),
        pytest.param(f"t={NOW},{v1()},v1=é", "TypeError", VALID, id="valid v1 before it"),
    ],
)
def test_header_that_the_official_sdk_fails_on(header: str, failure: str, verdict: Verdict) -> None:
    assert theirs(BODY, header)[0] == (failure, None)
    assert ours(BODY, header)[0] == verdict


@pytest.mark.parametrize(
    ("header", "position"),
    [
        (f"t={NOW},{v1(NEW)}", 0),
        (f"t={NOW},{v1(OLD)}", 1),
        (f"t={NOW},{v1(OLD)},{v1(NEW)}", 0),
    ],
)
def test_newest_matching_secret_is_reported(header: str, position: int) -> None:
    assert verify(BODY, header, SECRETS, now=NOW) == position


@pytest.mark.parametrize("now", [NOW, float(NOW)])
def test_timestamp_beyond_any_clock_is_malformed(now: float) -> None:
    with pytest.raises(SignatureError) as caught:
        verify(BODY, f"t={'9' * 400},{v1()}", SECRETS, now=now)

    assert caught.value.reason == "malformed"


def test_clock_of_the_system_is_the_default() -> None:
    header = sdk.Webhooks.generate_test_header(BODY, NEW)

    assert verify(BODY, header, SECRETS) == 0

    with pytest.raises(SignatureError) as caught:
        verify(BODY, sign(BODY, NEW, int(time.time()) - 310), SECRETS)

    assert caught.value.reason == "expired"


def test_our_signature_is_accepted_by_the_official_sdk() -> None:
    assert sdk.Webhooks.construct_event(BODY, sign(BODY, NEW), NEW)["type"] == "kyc.updated"


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("letter", ["s", "é"])
def test_secret_of_any_length(length: int, letter: str) -> None:
    secret = letter * length

    for body in (BODY, b"", BODY):  # one verification must leave nothing to the next
        header = sdk.Webhooks.generate_test_header(body, secret)
        assert verify(body, header, [secret]) == 0
        assert verify(body, header, [secret + letter, secret]) == 1


def test_one_secret_need_not_be_in_a_list() -> None:
    # Taken as a sequence, the string would be one secret a letter.
    assert verify(BODY, f"t={NOW},{v1(NEW)}", NEW, now=NOW) == 0

    with pytest.raises(SignatureError) as caught:
        verify(BODY, f"t={NOW},{v1('w')}", NEW, now=NOW)

    assert caught.value.reason == "mismatch"


@pytest.mark.parametrize("header", [sign(BODY, FOREIGN, NOW), f"t=abc,{v1()}"])
def test_error_carries_no_secret_body_or_signature(header: str) -> None:
    with pytest.raises(SignatureError) as caught:
        verify(BODY, header, SECRETS, now=NOW)

    text = repr(caught.value) + repr(caught.value.__cause__)
    assert not any(private in text for private in (*SECRETS, header, "Café", "abc"))


# The property test. Deliveries are put together from likely and unlikely parts, so that each of the
# verdicts, and each way in which the SDK fails, comes up often.


class Body(t.NamedTuple):
    raw: bytes
    ours: Verdict | None
    """Our verdict under a good signature; None where only the SDK knows better."""


def _event(event_id: str, data: object, encoding: str) -> Body:
    text = json.dumps({"id": event_id, "type": "kyc.updated", "data": data}, ensure_ascii=False)
    return Body(text.encode(encoding, "surrogatepass"), VALID)


def _edited(position: int, byte: int) -> Body:
    return Body(BODY[:position] + bytes([byte]) + BODY[position + 1 :], None)


def _refused(*bodies: bytes) -> st.SearchStrategy[Body]:
    return st.sampled_from([Body(raw, INVALID) for raw in bodies])


_values = st.one_of(
    st.none(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=2), st.booleans(), max_size=2),
)
_encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
_bodies = st.one_of(
    st.builds(_event, st.text("aZ09_-!~", min_size=1, max_size=50), _values, _encodings),
    st.builds(_edited, st.integers(0, len(BODY) - 1), st.integers(0, 255)),
    st.binary(max_size=9).map(lambda raw: Body(raw, INVALID)),
    _refused(
        b"[]",
        b"null",
        b'"x"',
        b"5",
        b'{"type": "a.b"}',
        b'{"id": 5, "type": "a.b"}',
        b'{"id": "a b", "type": "a.b"}',
        b'{"id": "evt_1"}',
        b'{"id": "evt_1", "type": null}',
        b'{"id": "evt_1", "type": "a.b", "data": NaN}',
        b'{"id": "evt_1", "type": "a.b", "data": -Infinity}',
        b'{"id": "evt_1", "id": "evt_2", "type": "a.b"}',
        b'{"id": "evt_1", "type": "a.b", "x": 1, "\\u0078": 1}',
    ),
    _refused(b"", b"{", b'{"id": "evt_\xff"}', b'{"id": %s}' % (b"9" * 5000)),
    _refused(b"[" * 100_000, b'{"id":' * 100_000),
)
_ages = st.integers(-330, 330)
_numbers = st.sampled_from(
    ["{}"] * 40
    + ["00{}", " {}\t", "\xa0{}", "-{}", "+{}", "{}.0", "{}_0", "{} 0", "{}\u0663", "", "x"]
    + ["²", "{}²", "9" * 400, "9" * 5000] * 2
)
_digest = [(secret, "{}") for secret in (NEW, OLD, FOREIGN)] * 5
_digest += [(NEW, text) for text in (" {} ", "{}\u2003", "={}", "{}0", "", "é", "{}²", "\udce9")]
_digests = st.sampled_from([*itertools.product(_digest), *itertools.product(_digest, _digest)])
_shapes = st.sampled_from(
    ["{t},{v1}"] * 20
    + ["{v1},{t}", " {t} , {v1} ,", "t=1,{t},{v1}", "v0=x,{t},{v1},é=é", "t,{t},v1,{v1}"]
    + ["", "{t}", "{v1}", "{t};{v1}", "T{t},{v1}", "{t},{v1},t=x"]
)
_endpoints = st.sampled_from(
    [((NEW, OLD), 300), ((OLD, NEW), 299), ((NEW, ""), 30), ((NEW,), 310), ((FOREIGN, OLD), 300)]
)


@st.composite
def _deliveries(draw: st.DrawFn) -> tuple[Body, str, tuple[str, ...], int]:
    body = draw(_bodies)
    timestamp = NOW - draw(_ages)
    digests = [
        f"v1={text.format(v1(secret, timestamp, body.raw)[3:])}" for secret, text in draw(_digests)
    ]
    number = draw(_numbers).format(timestamp)
    header = draw(_shapes).format(t=f"t={number}", v1=",".join(digests))
    return body, header, *draw(_endpoints)


def _without_non_ascii_v1(header: str) -> str:
    """The header with a harmless ``v1`` in place of each that the SDK fails on."""
    parts = [part.partition("=") for part in header.split(",")]
    return ",".join(
        f"{key}=x" if key.strip() == "v1" and not value.strip().isascii() else key + equals + value
        for key, equals, value in parts
    )


CLASSES = [
    "valid, ours valid",
    "valid, ours invalid_payload",
    "malformed",
    "expired",
    "mismatch",
    "invalid_payload",
    "ValueError",
    "OverflowError",
    "RecursionError",
    "TypeError, else valid",
    "TypeError, else mismatch",
    "TypeError, else invalid_payload",
]


@pytest.mark.usefixtures("frozen_sdk")
def test_any_delivery_gets_the_official_verdict() -> None:
    reached: collections.Counter[str] = collections.Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(_deliveries())
    def compare(delivery: tuple[Body, str, tuple[str, ...], int]) -> None:
        body, header, secrets, tolerance = delivery
        verdict, detail = ours(body.raw, header, secrets, tolerance)
        (name, status), payload = theirs(body.raw, header, secrets, tolerance)
        reached[name] += 1

        if name == "TypeError":
            header = _without_non_ascii_v1(header)
            (name, status), payload = theirs(body.raw, header, secrets, tolerance)
            reached[f"TypeError, else {name}"] += 1

        if name in ("ValueError", "OverflowError"):
            assert verdict == MALFORMED
        elif name == "RecursionError":
            assert verdict == INVALID
        elif name == "valid":
            reached[f"valid, ours {verdict[0]}"] += 1
            assert verdict == (body.ours or verdict)
            assert verdict == INVALID or detail == payload
        else:
            assert verdict == (name, status)

    compare()
    assert reached.total() >= EXAMPLES
    assert {name for name in CLASSES if reached[name] < EXAMPLES // 200} == set()
