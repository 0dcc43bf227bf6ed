"""Claims in Redis: leases, tokens, and a server that fails at the worst moment."""

from __future__ import annotations

import collections
import collections.abc as c
import concurrent.futures
import contextlib
import datetime as dt
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

import pytest
import redis
import redis.asyncio
from flask import Flask
from werkzeug.test import TestResponse

from flask_sangho_webhooks import (
    ConfigError,
    Event,
    event_failed,
    EventInProgress,
    GuardUnavailable,
    lease_lost,
    RedisGuard,
    SanghoWebhooks,
)

from .proxy import Loss, Proxy
from .redis_support import free_port, Keys, valkey_server
from .support import event_body, SECRET, Shop, TYPE

ROUNDS = 200
PROCESSES = 2
THREADS = 8
HOURS = 3600

spawn = multiprocessing.get_context("spawn")
Answers = list[tuple[int, int, str]]


class Runs:
    """A handler that counts, and does the first time what a test asks of it."""

    def __init__(self, shop: Shop, first: c.Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self.callbacks = 0
        self._shop = shop
        self._first = first
        self._lock = threading.Lock()
        shop.webhooks.on(TYPE)(self._handle)

    def _handle(self, event: Event) -> None:
        with self._lock:
            self.count += 1
            is_first = self.count == 1

        self._shop.webhooks.on_commit(self._call_back)
        self._shop.grant(f"{event.id} {self.count}")

        if is_first:
            self._first()

    def _call_back(self) -> None:
        self.callbacks += 1


@pytest.fixture
def lost() -> c.Iterator[list[str]]:
    """The events whose lease was signalled to be lost."""
    events: list[str] = []

    def receive(app: Flask, *, event: Event, guard: RedisGuard) -> None:
        assert isinstance(app, Flask)
        assert guard.key(event.id)
        events.append(event.id)

    with lease_lost.connected_to(receive):
        yield events


def fail() -> None:
    raise RuntimeError("handler")


def refusal(response: TestResponse) -> tuple[int, str]:
    assert response.json is not None
    return response.status_code, response.json["error"]


# ------------------------------------------------------------------ the states


def test_claim_lives_for_the_lease_and_record_for_the_retention(
    redis_shop: Shop, redis_keys: Keys
) -> None:
    claims: list[tuple[str, float]] = []

    @redis_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        claims.append((redis_keys.values()[event.id], redis_keys.seconds(event.id)))

    redis_shop.deliver()
    ((value, seconds),) = claims

    assert value.startswith("processing:")
    assert len(value) > 20
    assert 290 < seconds <= 300
    assert redis_keys.values() == {"evt_1": "processed"}
    assert 71.9 * HOURS < redis_keys.seconds("evt_1") <= 72 * HOURS


def test_settings_of_the_guard_come_before_the_configuration(
    redis_keys: Keys, sqlite_url: str
) -> None:
    guard = redis_keys.guard(lease=5, retention=dt.timedelta(hours=50))

    with Shop(sqlite_url, guard=guard) as shop:
        leases: list[float] = []
        shop.webhooks.on(TYPE)(lambda event: leases.append(redis_keys.seconds(event.id)))
        shop.deliver()

    assert 4 < leases[0] <= 5
    assert 49.9 * HOURS < redis_keys.seconds("evt_1") <= 50 * HOURS


def test_failed_event_leaves_no_key(redis_shop: Shop, redis_keys: Keys) -> None:
    Runs(redis_shop, fail)
    assert redis_shop.deliver().status_code == 500
    assert redis_keys.values() == {}


def test_forgetting_leaves_a_claim_alone(redis_shop: Shop, redis_keys: Keys) -> None:
    """Or the event would run twice at the same time."""

    @redis_shop.webhooks.on(TYPE)
    def handler(event: Event) -> None:
        with pytest.raises(EventInProgress):
            redis_shop.webhooks.endpoint().guard.forget(event.id)

        assert redis_shop.deliver().status_code == 503

    assert redis_shop.deliver().json == {"received": True}


def test_app_without_a_database(redis_keys: Keys) -> None:
    webhooks = SanghoWebhooks(guard=redis_keys.guard())
    runs: list[str] = []
    webhooks.on(TYPE)(lambda event: runs.append(event.id))
    app = Flask(__name__)
    app.config["SANGHO_WEBHOOK_SECRET"] = SECRET
    webhooks.init_app(app)

    with app.app_context():
        outcomes = [webhooks.process(Event.from_body(event_body())).value for _ in range(2)]

    assert outcomes == ["processed", "duplicate"]
    assert runs == ["evt_1"]


def test_committed_effects_stay_when_the_handler_fails(redis_shop: Shop) -> None:
    """Unlike with SQLGuard, whose transaction is around the handler's."""

    def commit_and_fail() -> None:
        redis_shop.db.session.commit()
        fail()

    Runs(redis_shop, commit_and_fail)

    assert redis_shop.deliver().status_code == 500
    assert redis_shop.grants() == ["evt_1 1"]
    assert redis_shop.deliver().json == {"received": True}
    assert redis_shop.grants() == ["evt_1 1", "evt_1 2"]


def test_event_is_not_recorded_when_the_session_does_not_commit(
    redis_shop: Shop, redis_keys: Keys
) -> None:
    """The commit comes before the record: between them a crash repeats the event, and loses
    nothing.
    """
    runs = Runs(redis_shop, lambda: redis_shop.grant("evt_1 1"))  # a second time: not unique

    assert redis_shop.deliver().status_code == 500
    assert redis_keys.values() == {}
    assert redis_shop.deliver().json == {"received": True}
    assert (runs.count, redis_shop.grants()) == (2, ["evt_1 2"])


# ----------------------------------------------------------------------- races


def deliver_in_step(
    url: str, prefix: str, counts: str, barrier: t.Any, answers: multiprocessing.Queue[Answers]
) -> None:
    """One process: its threads deliver the same event at the same moment, round after round."""
    counter = redis.Redis.from_url(url)
    shop = Shop("sqlite://", guard=RedisGuard(url=url, prefix=prefix))
    shop.webhooks.on(TYPE)(lambda event: counter.hincrby(counts, event.id))

    def deliver(mine: Answers) -> None:
        for number in range(ROUNDS):
            barrier.wait(60)
            response = shop.deliver(f"evt_{number}")
            mine.append((number, response.status_code, response.text.strip()))

    collected: Answers = []
    threads = [threading.Thread(target=deliver, args=[collected]) for _ in range(THREADS)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    answers.put(collected)


def test_one_run_in_each_round(redis_keys: Keys) -> None:
    barrier = spawn.Barrier(PROCESSES * THREADS)
    queue: multiprocessing.Queue[Answers] = spawn.Queue()
    arguments = (redis_keys.url, redis_keys.prefix, redis_keys.counter, barrier, queue)
    processes = [spawn.Process(target=deliver_in_step, args=arguments) for _ in range(PROCESSES)]

    for process in processes:
        process.start()

    answers = [answer for _ in processes for answer in queue.get(timeout=240)]

    for process in processes:
        process.join(30)
        assert process.exitcode == 0

    runs = redis_keys.client.hgetall(redis_keys.counter)
    processed = collections.Counter(n for n, _, body in answers if body == '{"received":true}')
    others = {(status, body) for _, status, body in answers if body != '{"received":true}'}

    assert runs == {f"evt_{number}": "1" for number in range(ROUNDS)}
    assert processed == {number: 1 for number in range(ROUNDS)}
    assert len(answers) == ROUNDS * PROCESSES * THREADS
    assert {status for status, _ in others} <= {200, 503}
    assert {body for status, body in others if status == 200} == {
        '{"duplicate":true,"received":true}'
    }


def deliver_in_forks(url: str, prefix: str) -> None:
    """A server that loads the app, and delivers, before it forks its workers."""
    shop = Shop("sqlite://", guard=RedisGuard(url=url, prefix=prefix))
    shop.webhooks.on(TYPE)(lambda event: None)
    assert shop.deliver().json == {"received": True}
    children = []

    for child in range(4):
        pid = os.fork()

        if pid:
            children.append(pid)
            continue

        mine = [shop.deliver(f"evt_{child}_{number}").json for number in range(50)]
        os._exit(mine != [{"received": True}] * 50)

    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert shop.deliver().json == {"received": True, "duplicate": True}


def test_connections_survive_a_fork(redis_keys: Keys) -> None:
    process = spawn.Process(target=deliver_in_forks, args=(redis_keys.url, redis_keys.prefix))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert len(redis_keys.values()) == 201


# ---------------------------------------------------------------------- leases


@contextlib.contextmanager
def late_finisher(shop: Shop, *, fails: bool = False) -> c.Iterator[LateFinisher]:
    finisher = LateFinisher(shop, fails)

    try:
        yield finisher
    finally:
        for release in finisher.releases:
            release.set()

        finisher.pool.shutdown()


class LateFinisher:
    """Run A claims the event for a second and is still working when run B claims it."""

    def __init__(self, shop: Shop, fails: bool) -> None:
        self.runs = 0
        self.fails = fails
        self.running = [threading.Event(), threading.Event()]
        self.releases = [threading.Event(), threading.Event()]
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        shop.webhooks.on(TYPE)(self._handle)
        self.a = self.pool.submit(shop.deliver)
        assert self.running[0].wait(10)
        assert shop.deliver().status_code == 503
        time.sleep(1.5)
        self.b = self.pool.submit(shop.deliver)
        assert self.running[1].wait(10)

    def _handle(self, event: Event) -> None:
        run = self.runs
        self.runs += 1
        self.running[run].set()
        assert self.releases[run].wait(20)

        if run == 0 and self.fails:
            fail()

    def finish(self, run: t.Literal["a", "b"]) -> TestResponse:
        self.releases["ab".index(run)].set()
        delivery: concurrent.futures.Future[TestResponse] = getattr(self, run)
        return delivery.result(20)


@pytest.fixture
def short_lease(redis_keys: Keys, sqlite_url: str) -> c.Iterator[Shop]:
    with Shop(sqlite_url, guard=redis_keys.guard(lease=1)) as shop:
        yield shop


@pytest.mark.parametrize(("fails", "status"), [(False, 503), (True, 500)])
def test_late_finisher_leaves_the_next_claim_alone(
    short_lease: Shop,
    redis_keys: Keys,
    lost: list[str],
    caplog: pytest.LogCaptureFixture,
    fails: bool,
    status: int,
) -> None:
    with late_finisher(short_lease, fails=fails) as runs:
        claim = redis_keys.values()["evt_1"]
        assert runs.finish("a").status_code == status
        assert redis_keys.values() == {"evt_1": claim}
        assert lost == ["evt_1"]
        assert "longer than the lease of 1 seconds" in caplog.text
        assert runs.finish("b").json == {"received": True}

    assert redis_keys.values() == {"evt_1": "processed"}
    assert lost == ["evt_1"]
    assert short_lease.deliver().json == {"received": True, "duplicate": True}


def test_late_finisher_after_the_next_run_is_a_duplicate(
    short_lease: Shop, redis_keys: Keys, lost: list[str]
) -> None:
    with late_finisher(short_lease) as runs:
        assert runs.finish("b").json == {"received": True}
        assert runs.finish("a").json == {"received": True, "duplicate": True}

    assert redis_keys.values() == {"evt_1": "processed"}
    assert lost == ["evt_1"]


def test_late_finisher_that_nobody_followed_is_recorded(
    short_lease: Shop, redis_keys: Keys, lost: list[str]
) -> None:
    runs = Runs(short_lease, lambda: time.sleep(1.2))

    assert short_lease.deliver().json == {"received": True}
    assert redis_keys.values() == {"evt_1": "processed"}
    assert (lost, runs.callbacks) == (["evt_1"], 1)
    assert short_lease.deliver().json == {"received": True, "duplicate": True}


def test_receiver_of_the_signal_cannot_change_the_outcome(short_lease: Shop) -> None:
    Runs(short_lease, lambda: time.sleep(1.2))

    def receive(app: Flask, **_: object) -> None:
        fail()

    with lease_lost.connected_to(receive):
        assert short_lease.deliver().json == {"received": True}


def deliver_and_die(url: str, prefix: str) -> None:
    shop = Shop("sqlite://", guard=RedisGuard(url=url, prefix=prefix, lease=1))
    shop.webhooks.on(TYPE)(lambda event: os.kill(os.getpid(), signal.SIGKILL))
    shop.deliver()


def test_killed_run_is_repeated_after_the_lease(short_lease: Shop, redis_keys: Keys) -> None:
    runs = Runs(short_lease)
    process = spawn.Process(target=deliver_and_die, args=(redis_keys.url, redis_keys.prefix))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert refusal(short_lease.deliver()) == (503, "in_progress")
    assert runs.count == 0

    wait_for_the_lease(redis_keys)

    assert short_lease.deliver().json == {"received": True}
    assert redis_keys.values() == {"evt_1": "processed"}


def wait_for_the_lease(keys: Keys) -> None:
    while keys.values():
        time.sleep(0.02)


# ------------------------------------------------------- a server that forgets


@pytest.fixture
def forgetful(valkey: t.Any, sqlite_url: str) -> c.Iterator[Shop]:
    """An app on a Valkey that the test may empty."""
    with Shop(sqlite_url, guard=RedisGuard(url=f"{valkey.connection_url}/0")) as shop:
        yield shop


def test_event_whose_record_is_gone_runs_again(forgetful: Shop, valkey: t.Any) -> None:
    runs = Runs(forgetful)
    forgetful.deliver()
    flush(valkey)

    assert forgetful.deliver().json == {"received": True}
    assert runs.count == 2


def test_event_whose_claim_is_gone_is_recorded(
    forgetful: Shop, valkey: t.Any, lost: list[str]
) -> None:
    runs = Runs(forgetful, lambda: flush(valkey))

    assert forgetful.deliver().json == {"received": True}
    assert forgetful.deliver().json == {"received": True, "duplicate": True}
    assert (runs.count, lost) == (1, ["evt_1"])


def test_event_whose_claim_is_gone_may_run_twice_and_is_recorded(
    forgetful: Shop, valkey: t.Any
) -> None:
    answers: list[t.Any] = []

    def first() -> None:
        flush(valkey)
        answers.append(forgetful.deliver().json)

    runs = Runs(forgetful, first)
    answers.append(forgetful.deliver().json)

    assert answers == [{"received": True}, {"received": True}]
    assert runs.count == 2
    assert forgetful.deliver().json == {"received": True, "duplicate": True}


def test_server_that_hangs_up_on_all_idle_connections(forgetful: Shop, valkey: t.Any) -> None:
    Runs(forgetful)

    with redis.Redis.from_url(valkey.connection_url) as client:
        client.execute_command("CLIENT", "PAUSE", 300, "WRITE")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(forgetful.deliver, [f"evt_{n}" for n in range(4)]))

        assert [answer.status_code for answer in answers] == [200] * 4
        assert client.client_kill_filter(_type="normal", skipme=True) >= 3

    assert forgetful.deliver("evt_4").json == {"received": True}


@pytest.mark.parametrize("interruption", [SystemExit, redis.TimeoutError])
def test_late_reply_is_not_taken_for_that_to_the_next_command(
    forgetful: Shop,
    valkey: t.Any,
    monkeypatch: pytest.MonkeyPatch,
    interruption: type[BaseException],
) -> None:
    """As when the time limit of a task ends between a command and its reply."""
    runs = Runs(forgetful)
    assert forgetful.deliver().json == {"received": True}

    def interrupt(*_: object, **__: object) -> t.NoReturn:
        raise interruption

    with redis.Redis.from_url(valkey.connection_url) as client:
        client.execute_command("CLIENT", "PAUSE", 200, "ALL")

    with forgetful.app.app_context(), monkeypatch.context() as patch:
        guard = forgetful.webhooks.endpoint().guard
        patch.setattr(redis.Connection, "read_response", interrupt)

        with pytest.raises((SystemExit, GuardUnavailable)):
            guard.seen("evt_1")  # "processed"

    assert forgetful.deliver("evt_2").json == {"received": True}
    assert runs.count == 2


def flush(valkey: t.Any) -> None:
    with redis.Redis.from_url(valkey.connection_url) as client:
        client.flushall()


# ------------------------------------------------- a connection that is broken


@pytest.fixture
def proxy(redis_url: str) -> c.Iterator[Proxy]:
    with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
def proxied(redis_keys: Keys, proxy: Proxy, sqlite_url: str) -> c.Iterator[Shop]:
    """An app that reaches Redis by way of the proxy, with a lease of one second."""
    with Shop(sqlite_url, guard=redis_keys.guard(url=proxy.url, lease=1)) as shop:
        yield shop


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("step", ["claim", "claim of a duplicate", "complete"])
def test_lost_message_changes_nothing(
    proxied: Shop, proxy: Proxy, redis_keys: Keys, lost: list[str], loss: Loss, step: str
) -> None:
    runs = Runs(proxied, lambda: time.sleep(0.1))
    is_duplicate = step == "claim of a duplicate"

    if is_duplicate:
        assert proxied.deliver().json == {"received": True}

    proxy.lose(loss, b"ARGV[3]" if step == "complete" else b"'NX'")

    answer = proxied.deliver().json
    assert proxy.has_lost
    assert answer == {"received": True} | ({"duplicate": True} if is_duplicate else {})
    assert (runs.count, runs.callbacks, lost) == (1, 1, [])
    assert redis_keys.values() == {"evt_1": "processed"}


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_lost_message_to_release_changes_nothing(
    proxied: Shop, proxy: Proxy, redis_keys: Keys, lost: list[str], loss: Loss
) -> None:
    Runs(proxied, fail)
    proxy.lose(loss, b"'DEL'")

    assert proxied.deliver().status_code == 500
    assert proxy.has_lost
    assert (redis_keys.values(), lost) == ({}, [])


def test_refused_at_the_claim(proxied: Shop, proxy: Proxy, redis_keys: Keys) -> None:
    runs = Runs(proxied)
    proxied.deliver("evt_before")
    proxy.refuse()
    response = proxied.deliver()

    assert refusal(response) == (503, "unavailable")
    assert response.headers["Retry-After"] == "30"
    assert runs.count == 1
    proxy.accept()
    assert proxied.deliver().json == {"received": True}
    assert redis_keys.values() == {"evt_1": "processed", "evt_before": "processed"}


def test_refused_at_completion(
    proxied: Shop,
    proxy: Proxy,
    redis_keys: Keys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = Runs(proxied, proxy.refuse)
    response = proxied.deliver()

    assert refusal(response) == (503, "unavailable")
    assert [r.levelno for r in caplog.records if "did not take the record" in r.message] == [
        logging.ERROR
    ]
    assert (runs.count, runs.callbacks) == (1, 0)
    assert redis_keys.values()["evt_1"].startswith("processing:")
    assert 0 < redis_keys.seconds("evt_1") <= 1
    assert_runs_after_the_lease(proxied, proxy, redis_keys)
    assert (runs.count, runs.callbacks) == (2, 1)


def test_refused_at_the_release(
    proxied: Shop, proxy: Proxy, redis_keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[BaseException] = []

    def refuse_and_fail() -> None:
        proxy.refuse()
        fail()

    def receive(app: Flask, *, error: BaseException, **_: object) -> None:
        failures.append(error)

    runs = Runs(proxied, refuse_and_fail)

    with event_failed.connected_to(receive):
        assert proxied.deliver().status_code == 500

    assert [str(error) for error in failures] == ["handler"]
    assert "could not be released" in caplog.text
    assert_runs_after_the_lease(proxied, proxy, redis_keys)
    assert runs.count == 2


def assert_runs_after_the_lease(shop: Shop, proxy: Proxy, keys: Keys) -> None:
    proxy.accept()
    assert refusal(shop.deliver()) == (503, "in_progress")
    wait_for_the_lease(keys)
    assert shop.deliver().json == {"received": True}
    assert keys.values() == {"evt_1": "processed"}


@contextlib.contextmanager
def dead_server(kind: str) -> c.Iterator[str]:
    """The URL of a port that refuses, accepts and never answers, or does not even accept."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]

        if kind == "refuses":
            listener.close()

        if kind == "full":
            for _ in range(2):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))

        yield f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize("kind", ["refuses", "silent", "full"])
def test_dead_server_is_known_within_two_seconds(kind: str, sqlite_url: str) -> None:
    with dead_server(kind) as url, Shop(sqlite_url, guard=RedisGuard(url=url)) as shop:
        runs = Runs(shop)
        started = time.monotonic()
        response = shop.deliver()
        seconds = time.monotonic() - started

    assert refusal(response) == (503, "unavailable")
    assert seconds < 2
    assert runs.count == 0


def test_server_that_stops_answering_is_known_within_two_seconds(
    proxied: Shop, proxy: Proxy
) -> None:
    """On a connection that has served before."""
    Runs(proxied)
    assert proxied.deliver("evt_before").status_code == 200
    proxy.silent = True
    started = time.monotonic()
    assert proxied.deliver().status_code == 503
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("method", ["seen", "forget"])
def test_other_methods_say_that_redis_is_unavailable(method: str, sqlite_url: str) -> None:
    with (
        dead_server("refuses") as url,
        Shop(sqlite_url, guard=RedisGuard(url=url)) as shop,
        shop.app.app_context(),
        pytest.raises(GuardUnavailable, match="ConnectionError"),
    ):
        getattr(shop.webhooks.endpoint().guard, method)("evt_1")


def test_server_without_memory_answers_503(valkey: t.Any, sqlite_url: str) -> None:
    url = f"{valkey.connection_url}/0"

    with redis.Redis.from_url(url) as client, Shop(sqlite_url, guard=RedisGuard(url=url)) as shop:
        runs = Runs(shop)
        client.config_set("maxmemory", 1)
        assert refusal(shop.deliver()) == (503, "unavailable")
        client.config_set("maxmemory", 0)
        assert shop.deliver().json == {"received": True}

    assert runs.count == 1


# --------------------------------------------------------------- configuration


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), True, "300"])
def test_lease_that_is_none_is_refused(lease: t.Any) -> None:
    with pytest.raises(ConfigError, match="'lease' must be a number greater than 0"):
        RedisGuard(lease=lease)


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_lease_of_the_configuration_is_checked(lease: float, sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="'SANGHO_WEBHOOK_LEASE' must be a number greater"):
        Shop(sqlite_url, guard=RedisGuard(), config={"SANGHO_WEBHOOK_LEASE": lease})


def test_short_retention_is_refused() -> None:
    with pytest.raises(ConfigError, match="'retention' must be at least 48 hours"):
        RedisGuard(retention=dt.timedelta(hours=47))


def test_lease_longer_than_the_retention_is_refused(sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="longer than the retention"):
        Shop(sqlite_url, guard=RedisGuard(lease=80 * HOURS))


def test_client_and_url_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="a client or a URL, not both"):
        RedisGuard(redis.Redis(), url="redis://localhost")


def test_asyncio_client_is_refused() -> None:
    """Its answers are coroutines, and true: every claim would succeed."""
    with pytest.raises(ConfigError, match=r"not redis\.asyncio"):
        RedisGuard(t.cast(t.Any, redis.asyncio.Redis()))


def test_client_without_a_timeout_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="has no timeout"):
        RedisGuard(redis.Redis(socket_timeout=None))


@pytest.mark.parametrize("url", ["http://:hunter2@localhost", "redis://:hunter2@localhost:port"])
def test_url_that_is_not_valid_is_not_shown(sqlite_url: str, url: str) -> None:
    with pytest.raises(ConfigError, match="URL") as caught:
        Shop(sqlite_url, guard=RedisGuard(url=url))

    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_guard_that_belongs_to_no_endpoint_says_so() -> None:
    with pytest.raises(ConfigError, match="belongs to no endpoint yet"):
        RedisGuard().seen("evt_1")


@pytest.mark.parametrize("decode_responses", [True, False])
def test_client_of_the_users_own(redis_keys: Keys, sqlite_url: str, decode_responses: bool) -> None:
    with (
        redis.Redis.from_url(
            redis_keys.url, decode_responses=decode_responses, socket_timeout=1
        ) as client,
        Shop(sqlite_url, guard=RedisGuard(client, prefix=redis_keys.prefix)) as shop,
    ):
        runs = Runs(shop, lambda: time.sleep(0.1))
        assert shop.deliver().json == {"received": True}
        assert shop.deliver().json == {"received": True, "duplicate": True}

    assert runs.count == 1
    assert redis_keys.values() == {"evt_1": "processed"}


def test_cluster(sqlite_url: str) -> None:
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}

    with valkey_server(**config) as server:
        with redis.Redis(host="127.0.0.1", port=server.port) as node:
            node.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")

            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                time.sleep(0.05)

        client = redis.RedisCluster(host="127.0.0.1", port=server.port, socket_timeout=1)

        with Shop(sqlite_url, guard=RedisGuard(client)) as shop:
            runs = Runs(shop, fail)
            answers = [shop.deliver().status_code for _ in range(3)]

        client.close()

    assert (answers, runs.count) == ([500, 200, 200], 2)


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_package_works_without_the_extra() -> None:
    assert (
        python(
            "import sys; sys.modules['redis'] = None\n"
            "import flask_sangho_webhooks as package\n"
            "try: package.RedisGuard\n"
            "except package.ConfigError as error: print(error)"
        )
        == 'RedisGuard needs the redis extra: pip install "flask-sangho-webhooks[redis]"'
    )


def test_package_imports_no_extra_by_itself() -> None:
    assert (
        python(
            "import flask_sangho_webhooks, sys\n"
            "print({'redis', 'celery', 'kombu'} & set(sys.modules))"
        )
        == "set()"
    )
