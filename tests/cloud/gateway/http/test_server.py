"""What every HTTP call meets, whatever its route."""

import gzip
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cloud.gateway.bind import ListenError
from cloud.gateway.common.auth import TOKEN_VARIABLE
from cloud.gateway.settings import GatewaySettings
from shared.broker.certificate_authority import CertificateAuthority
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.node_status import NodeState, unpack_status
from tests.cloud.gateway.detect.test_route import PIXELS, detect, png
from tests.cloud.gateway.http.test_hostile_peers import DETECT, connect, said, statuses
from tests.support.gateway import WAIT_S, Doors, open_gateway, watch
from tests.support.tiny_model import model

HTTP = GatewaySettings(http="127.0.0.1:0")


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", origins=("https://here.example",))) as doors:
        yield doors


def get(doors: Doors, path: str, **request: Any) -> httpx.Response:
    """Ask for a page."""
    return httpx.get(f"http://{doors.http}{path}", verify=False, timeout=WAIT_S, trust_env=False, **request)


@contextmanager
def held(doors: Doors, gate: threading.Event, calls: int) -> Iterator[list[httpx.Response]]:
    """So many detections under way within the block, and their answers after it."""
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(detect(doors, files={"file": png(PIXELS)})))
        for _ in range(calls)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        gate.set()
        for thread in threads:
            thread.join(WAIT_S)


def gated() -> tuple[threading.Event, threading.Event, Callable[[], None]]:
    """What a model does: it tells that it has begun, and waits for a gate."""
    gate, began = threading.Event(), threading.Event()

    def act() -> None:
        began.set()
        assert gate.wait(WAIT_S)

    return gate, began, act


def test_health_tells_that_the_worker_takes_calls(doors: Doors) -> None:
    """A balancer sends it calls only then."""
    answer = get(doors, "/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "worker": "w", "models": ["tiny"]})


def test_status_is_what_the_broker_retains(doors: Doors) -> None:
    """A vehicle that sends by REST needs the model's card just so."""
    status = unpack_status(get(doors, "/skylane/v1/status").content)
    assert (status.state, [card.name for card in status.cards]) == (NodeState.ONLINE, ["tiny"])


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/api/detect", 405)])
def test_an_unknown_path_or_method_is_refused_in_the_form_of_all_errors(doors: Doors, path: str, status: int) -> None:
    """A client reads one form."""
    answer = get(doors, path)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_a_document_describes_every_route(doors: Doors) -> None:
    """Clients are made from it, and it is tried against the code."""
    document = get(doors, "/openapi.json").json()
    assert {"/api/detect", "/healthz", "/metrics", "/skylane/v1/status", "/skylane/v1/probe"} <= document[
        "paths"
    ].keys()
    assert "HTTPValidationError" not in json.dumps(document)


def test_while_it_drains_what_came_is_answered_and_no_more_is_taken() -> None:
    """An update of the worker costs nobody an answer."""
    gate, began, act = gated()
    with open_gateway(model(act), gateway=HTTP) as doors:
        with held(doors, gate, 1) as answers:
            assert began.wait(WAIT_S)
            seen = doors.node.door.wait_for_change(0, WAIT_S, lambda: True)
            doors.node.stop()
            doors.node.door.wait_for_change(seen, WAIT_S, lambda: False)
            health = get(doors, "/healthz")
            late = detect(doors, files={"file": png(PIXELS)})
        assert (health.status_code, health.json()["status"]) == (503, "stopping")
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert [answer.status_code for answer in answers] == [200]


def test_more_calls_than_are_taken_at_a_time_are_refused() -> None:
    """Each holds memory; the caller learns at once that it must come back."""
    gate, began, act = gated()
    settings = GatewaySettings(http="127.0.0.1:0", max_calls=1)
    with open_gateway(model(act), gateway=settings) as doors, held(doors, gate, 1) as answers:
        assert began.wait(WAIT_S)
        refused = detect(doors, files={"file": png(PIXELS)})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        gate.set()
    assert [answer.status_code for answer in answers] == [200]


def test_a_caller_that_goes_away_is_no_longer_worked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has not begun when nobody waits any more would only keep others waiting."""
    gate, _, act = gated()
    gone = threading.Event()
    handed_in = watch(monkeypatch)
    with open_gateway(model(act), gateway=HTTP) as doors:
        with held(doors, gate, 3):
            for _ in range(3):  # One is inferred, one has a place in the next batch.
                handed_in.get(timeout=WAIT_S)
            body = png(PIXELS)
            with closing(connect(doors)) as peer:
                peer.sendall(DETECT + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                handed_in.get(timeout=WAIT_S).add_done_callback(lambda _: gone.set())
            assert gone.wait(WAIT_S)
        until_s = time.monotonic() + WAIT_S
        codes: dict[str, str] = {}
        while "499" not in codes and time.monotonic() < until_s:  # A call is counted behind its answer.
            told = re.findall(r'skylane_calls_total{code="(\d+)",protocol="http"} (\d+)', get(doors, "/metrics").text)
            codes = {code: count for code, count in told if code != "200"}
    assert doors.node.counts == {"answered": 3, "expired": 1}
    assert codes == {"499": "1"}  # No 5xx, which would wake an operator.


def test_a_deadline_of_the_header_is_kept() -> None:
    """A caller that gives up at a time wants no answer after it."""
    with open_gateway(model(), gateway=HTTP) as doors:
        late = detect(doors, files={"file": png(PIXELS)}, headers={"skylane-timeout-ms": "0"})
        unreadable = detect(doors, files={"file": png(PIXELS)}, headers={"skylane-timeout-ms": "soon"})
    assert (late.status_code, unreadable.status_code) == (408, 400)


def test_a_folded_body_is_unfolded_and_an_answer_folded_where_it_is_asked(doors: Doors) -> None:
    """Lossless, and for whoever has a narrow link; a binary answer only where nothing else is taken."""
    body, headers = (
        gzip.compress(png(np.zeros((400, 400), np.uint8))),
        {"content-type": "image/png", "content-encoding": "gzip"},
    )
    plain = detect(doors, content=body, headers={**headers, "accept-encoding": "identity"})
    folded = detect(doors, content=body, headers={**headers, "accept-encoding": "gzip, deflate"})
    binary = detect(doors, content=body, headers={**headers, "accept": "image/png", "accept-encoding": "gzip, deflate"})
    alone = detect(doors, content=body, headers={**headers, "accept": "image/png", "accept-encoding": "deflate"})
    refused = detect(doors, content=body, headers={**headers, "accept-encoding": "gzip; Q=0.0, identity"})
    weighed = detect(doors, content=body, headers={**headers, "accept-encoding": "gzip;q=0, deflate;q=0.5"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert weighed.headers["content-encoding"] == "deflate"
    assert folded.headers["content-encoding"] == "gzip"
    assert folded.json()["mask"] == plain.json()["mask"]
    assert "content-encoding" not in binary.headers
    assert alone.headers["content-encoding"] == "deflate"
    assert alone.content == binary.content


FOREIGN = (
    "https://elsewhere.example",
    "https://here.example.elsewhere.example",
    "https://elsewhere-here.example",
    "http://here.example",
    "https://here.example:8443",
    "https://here.example@elsewhere.example",
    "null",
    "*",
    "",
)


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_only_pages_of_the_origins_given_may_call(doors: Doors, method: str, origin: str) -> None:
    """A page that anybody may open must not call a worker that only its reader reaches."""
    asked = {"access-control-request-method": "POST"}
    url = f"http://{doors.http}/v2/repository/index"
    here = httpx.request(method, url, headers={**asked, "origin": "https://here.example"}, verify=False, timeout=WAIT_S)
    elsewhere = httpx.request(method, url, headers={**asked, "origin": origin}, verify=False, timeout=WAIT_S)
    assert here.headers["access-control-allow-origin"] == "https://here.example"
    assert "access-control-allow-credentials" not in here.headers
    assert elsewhere.status_code == 403
    assert not [name for name in elsewhere.headers if name.startswith("access-control")]


def test_a_foreign_pages_order_is_not_carried_out(doors: Doors) -> None:
    """A browser sends a form's post to any server; that its page reads no answer undoes nothing."""
    orders = (f"http://{doors.http}/v2/repository/models/tiny/{order}" for order in ("unload", "load"))
    refused = [
        httpx.post(order, headers={"origin": "https://elsewhere.example"}, verify=False, timeout=WAIT_S)
        for order in orders
    ]
    assert [answer.status_code for answer in refused] == [403, 403]
    assert get(doors, "/v2/models/tiny/ready").status_code == 200


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_workers_own_page_may_call(scheme: str, doors: Doors) -> None:
    """Its page of the routes tries them out, also behind a proxy that speaks TLS."""
    answer = get(doors, "/skylane/v1/status", headers={"origin": f"{scheme}://{doors.http}"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/skylane/v1/status", "/docs", "/openapi.json", "/v2"])
def test_a_call_to_a_name_that_is_not_the_workers_is_refused(path: str, doors: Doors) -> None:
    """A page whose name was made to mean this worker's address (DNS rebinding) sends neither Origin nor another sign."""
    answer = get(doors, path, headers={"host": "rebound.example:8000"})
    assert answer.status_code == 403
    assert "--allowed-host rebound.example" in answer.json()["error"]
    assert get(doors, "/healthz", headers={"host": "rebound.example"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost:8000", "LOCALHOST", "[::1]:8000", "10.0.0.7", "fleet.example:1", "Car.Local"]
)
def test_the_worker_is_called_by_addresses_and_the_names_it_was_given(host: str) -> None:
    """Nobody else's record can make these mean something else."""
    with open_gateway(model(), gateway=replace(HTTP, allowed_hosts=("fleet.example", "car.local"))) as doors:
        assert get(doors, "/skylane/v1/status", headers={"host": host}).status_code == 200
        for scheme in ("http", "https"):
            page = {"host": host, "origin": f"{scheme}://{host}", "sec-fetch-site": "same-origin"}
            assert get(doors, "/skylane/v1/status", headers=page).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /metrics HTTP/1.1",
        "GET /healthz HTTP/1.1",
        "GET /metrics HTTP/1.0",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        "GET /metrics HTTP/1.1\r\nHost: local host",
        "GET /metrics HTTP/1.1\r\nHost: user@localhost",
        "GET /metrics HTTP/1.1\r\nHost: localhost:http",
        "GET /metrics HTTP/1.1\r\nHost: localhost/x",
        "GET /metrics HTTP/1.1\r\nHost: ",
        "GET /metrics HTTP/2.0\r\nHost: localhost",
        "GET /metrics HTTP/0.9\r\nHost: localhost",
        "GET /metrics HTTP/3.1\r\nHost: localhost",
        "GET /metrics",
    ],
)
def test_a_head_that_names_no_host_or_several_is_refused(head: str, doors: Doors) -> None:
    """RFC 9112, 3.2: a server and a proxy before it must not read two hosts out of one request."""
    with closing(connect(doors)) as peer:
        peer.sendall(f"{head}\r\n\r\n".encode())
        assert statuses(said(peer)) == [400]


def test_a_balancers_probe_needs_no_host(doors: Doors) -> None:
    """Some ask in HTTP/1.0."""
    with closing(connect(doors)) as peer:
        peer.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert statuses(said(peer)) == [200]


def test_without_an_origin_given_no_header_lets_a_page_in() -> None:
    """The default is closed."""
    with open_gateway(model(), gateway=HTTP) as doors:
        for origin in ("https://here.example", f"http://{doors.http}"):
            told = httpx.options(
                f"http://{doors.http}/api/detect", headers={"origin": origin}, verify=False, timeout=WAIT_S
            )
            read = get(doors, "/healthz", headers={"origin": origin})
            names = [*told.headers, *read.headers]
            assert not [name for name in names if name.startswith("access-control")]


def test_a_token_is_asked_for_before_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not call must not make the worker read."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car 0123456789abcdef\n* fedcba9876543210\n")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", tokens=tokens)) as doors:
        with closing(connect(doors)) as peer:
            peer.sendall(DETECT + b"Content-Length: 1000000\r\n\r\n")
            told = said(peer)
        bearer = {"authorization": "Bearer 0123456789abcdef"}
        own = get(doors, "/skylane/v1/status", headers=bearer)
        others = get(doors, "/skylane/v1/status", headers={**bearer, "skylane-vehicle": "bus"})
        anyone = get(doors, "/metrics", headers={"authorization": "Bearer fedcba9876543210", "skylane-vehicle": "bus"})
        health = get(doors, "/healthz")
    assert statuses(told) == [401]
    assert b"www-authenticate: Bearer" in told
    assert [answer.status_code for answer in (own, others, anyone, health)] == [200, 403, 200, 200]


def test_over_tls_alone_where_there_is_a_certificate(tmp_path: Path) -> None:
    """A token sent in the clear is everybody's."""
    authority = CertificateAuthority(tmp_path)
    issued = authority.broker(["127.0.0.1"], 1)
    key, certificate = issued.file.with_suffix(".key"), issued.file.with_suffix(".crt")
    settings = GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=key)
    trusted = ssl.create_default_context(cafile=str(authority.certificate_file))
    with open_gateway(model(), gateway=settings) as doors:
        assert httpx.get(f"https://{doors.http}/healthz", verify=trusted, timeout=WAIT_S).status_code == 200
        with pytest.raises(httpx.HTTPError):
            get(doors, "/healthz")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (GatewaySettings(http="127.0.0.1"), "write HOST:PORT"),
        (GatewaySettings(http="203.0.113.1:1"), "cannot listen at 203.0.113.1:1"),
        (GatewaySettings(http="127.0.0.1:0", tls_cert=Path("none"), tls_key=Path("none")), "certificate none"),
    ],
)
def test_what_cannot_be_listened_at_is_said_at_once(settings: GatewaySettings, word: str) -> None:
    """Before any model is warm."""
    with pytest.raises(ListenError, match=word), open_gateway(model(), gateway=settings):
        pass


def test_a_probe_is_echoed_with_the_workers_clock(doors: Doors) -> None:
    """A vehicle that sends by REST must know how late its clock is, as one at the broker does."""
    url = f"http://{doors.http}/skylane/v1/probe"
    answer = httpx.post(url, content=pack_probe(Probe("s1", 3, 5)), verify=False, timeout=WAIT_S)
    echo = unpack_echo(answer.content)
    assert (echo.session, echo.sequence, echo.sent_ns) == ("s1", 3, 5)
    assert echo.received_ns <= echo.replied_ns
    refused = [
        httpx.post(url, content=content, verify=False, timeout=WAIT_S).status_code
        for content in (b"no probe", bytes(600))
    ]
    assert refused == [400, 413]
