"""The HTTP server: what applies to calls of every route."""

import gzip
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cloud.gateway.common.auth import TOKEN_VARIABLE
from ops.broker.certificate_authority import CertificateAuthority
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.node_status import NodeState, unpack_status
from tests.support.gateway import WAIT_S, Gate, GatewayWorker, open_gateway, watch_submissions
from tests.support.http_calls import DETECT, PIXELS, connect, detect, png, receive_all, statuses
from tests.support.tiny_model import model


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(model(), http="127.0.0.1:0", origins=("https://here.example",)) as worker:
        yield worker


def get(worker: GatewayWorker, path: str, **request: Any) -> httpx.Response:
    """Sends a GET request."""
    return httpx.get(f"http://{worker.http}{path}", verify=False, timeout=WAIT_S, trust_env=False, **request)


@contextmanager
def calls_in_progress(worker: GatewayWorker, gate: Gate, count: int) -> Iterator[list[httpx.Response]]:
    """Keeps calls of `/api/detect` in progress within the block; their responses are in the list after it."""
    responses: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: responses.append(detect(worker, files={"file": png(PIXELS)})))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield responses
    finally:
        gate.open()
        for thread in threads:
            thread.join(WAIT_S)


@pytest.fixture(name="gate")
def _gate() -> Gate:
    gate = Gate()
    gate.close()
    return gate


def test_health_reports_a_ready_worker(worker: GatewayWorker) -> None:
    """Load balancers then send calls to it."""
    response = get(worker, "/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "worker": "w", "models": ["tiny"]})


def test_status_is_the_message_that_the_broker_retains(worker: GatewayWorker) -> None:
    """A vehicle that sends over HTTP needs the same model card."""
    status = unpack_status(get(worker, "/skylane/v1/status").content)
    assert (status.state, [card.name for card in status.cards]) == (NodeState.ONLINE, ["tiny"])


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/api/detect", 405)])
def test_an_unknown_path_or_method_has_the_usual_error_body(worker: GatewayWorker, path: str, status: int) -> None:
    """Clients need to parse only one form of errors."""
    response = get(worker, path)
    assert (response.status_code, list(response.json())) == (status, ["error"])


def test_a_stopping_worker_answers_earlier_calls_and_rejects_new_ones(gate: Gate) -> None:
    """An update of the worker must not lose calls."""
    with open_gateway(model(gate), http="127.0.0.1:0") as worker:
        with calls_in_progress(worker, gate, 1) as responses:
            assert gate.reached.wait(WAIT_S)
            seen = worker.node.submission.wait_for_change(0, WAIT_S, lambda: True)
            worker.node.stop()
            worker.node.submission.wait_for_change(seen, WAIT_S, lambda: False)
            health = get(worker, "/healthz")
            late = detect(worker, files={"file": png(PIXELS)})
        assert (health.status_code, health.json()["status"]) == (503, "stopping")
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert [response.status_code for response in responses] == [200]


def test_a_call_beyond_max_calls_fails_as_busy(gate: Gate) -> None:
    """Every call holds memory; the caller learns at once that it must retry."""
    with (
        open_gateway(model(gate), http="127.0.0.1:0", max_calls=1) as worker,
        calls_in_progress(worker, gate, 1) as responses,
    ):
        assert gate.reached.wait(WAIT_S)
        rejected = detect(worker, files={"file": png(PIXELS)})
        assert (rejected.status_code, rejected.headers["retry-after"]) == (429, "1")
        gate.open()
    assert [response.status_code for response in responses] == [200]


def test_the_frame_of_a_disconnected_caller_is_cancelled(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would only delay other callers. The call counts as 499, not as an error of the worker."""
    cancelled = threading.Event()
    submitted = watch_submissions(monkeypatch)
    with open_gateway(model(gate), http="127.0.0.1:0") as worker:
        with calls_in_progress(worker, gate, 3):
            for _ in range(3):  # One is being inferred, one is in the next batch.
                submitted.get(timeout=WAIT_S)
            body = png(PIXELS)
            with closing(connect(worker)) as peer:
                peer.sendall(DETECT + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                submitted.get(timeout=WAIT_S).add_done_callback(lambda _: cancelled.set())
            assert cancelled.wait(WAIT_S)
        deadline_s = time.monotonic() + WAIT_S
        codes: dict[str, str] = {}
        while "499" not in codes and time.monotonic() < deadline_s:  # A call is counted after its response.
            counts = re.findall(
                r'skylane_calls_total{code="(\d+)",protocol="http"} (\d+)', get(worker, "/metrics").text
            )
            codes = {code: count for code, count in counts if code != "200"}
    assert worker.node.counts == {"answered": 3, "expired": 1}
    assert codes == {"499": "1"}  # No 5xx.


def test_the_timeout_in_the_header_applies() -> None:
    """A caller that stops waiting has no use for a later response."""
    with open_gateway(model(), http="127.0.0.1:0") as worker:
        late = detect(worker, files={"file": png(PIXELS)}, headers={"skylane-timeout-ms": "0"})
        malformed = detect(worker, files={"file": png(PIXELS)}, headers={"skylane-timeout-ms": "soon"})
    assert (late.status_code, malformed.status_code) == (408, 400)


def test_bodies_are_compressed_as_the_headers_say(worker: GatewayWorker) -> None:
    """Binary responses are compressed only for a caller that accepts a single coding."""
    body = gzip.compress(png(np.zeros((400, 400), np.uint8)))

    def detect_accepting(coding: str, media_type: str = "application/json") -> tuple[str | None, httpx.Response]:
        headers = {"content-type": "image/png", "content-encoding": "gzip", "accept": media_type}
        response = detect(worker, content=body, headers={**headers, "accept-encoding": coding})
        return response.headers.get("content-encoding"), response

    coding, plain = detect_accepting("identity")
    assert coding is None
    coding, compressed = detect_accepting("gzip, deflate")
    assert coding == "gzip"
    assert compressed.json()["mask"] == plain.json()["mask"]
    assert detect_accepting("gzip; Q=0.0, identity")[0] is None
    assert detect_accepting("gzip;q=0, deflate;q=0.5")[0] == "deflate"
    coding, image = detect_accepting("gzip, deflate", "image/png")
    assert coding is None
    coding, compressed_image = detect_accepting("deflate", "image/png")
    assert coding == "deflate"
    assert compressed_image.content == image.content


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


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "POST"])
def test_only_pages_of_allowed_origins_may_call(worker: GatewayWorker, method: str) -> None:
    """A foreign web page must not call a worker that only its visitor can reach."""
    with httpx.Client(verify=False, timeout=WAIT_S, trust_env=False) as client:

        def call(origin: str) -> httpx.Response:
            headers = {"access-control-request-method": "POST", "origin": origin}
            return client.request(method, f"http://{worker.http}/v2/repository/index", headers=headers)

        here = call("https://here.example")
        assert here.headers["access-control-allow-origin"] == "https://here.example"
        assert "access-control-allow-credentials" not in here.headers
        for origin in FOREIGN:
            elsewhere = call(origin)
            assert elsewhere.status_code == 403, origin
            assert not [name for name in elsewhere.headers if name.startswith("access-control")]


def test_a_call_to_a_foreign_host_name_is_rejected(worker: GatewayWorker) -> None:
    """With DNS rebinding, the host name is the only sign of a foreign page: there is no Origin header."""
    for path in ("/metrics", "/skylane/v1/status", "/docs", "/openapi.json", "/v2"):
        response = get(worker, path, headers={"host": "rebound.example:8000"})
        assert response.status_code == 403, path
        assert "--allowed-host rebound.example" in response.json()["error"]
    assert get(worker, "/healthz", headers={"host": "rebound.example"}).status_code == 200


def test_ip_addresses_and_allowed_names_are_accepted() -> None:
    """An attacker's DNS records cannot redirect these."""
    hosts = ("localhost:8000", "LOCALHOST", "[::1]:8000", "10.0.0.7", "fleet.example:1", "Car.Local")
    with open_gateway(model(), http="127.0.0.1:0", allowed_hosts=("fleet.example", "car.local")) as worker:
        for host in hosts:
            assert get(worker, "/skylane/v1/status", headers={"host": host}).status_code == 200
            for scheme in ("http", "https"):
                page = {"host": host, "origin": f"{scheme}://{host}", "sec-fetch-site": "same-origin"}
                assert get(worker, "/skylane/v1/status", headers=page).status_code == 200, host


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
def test_a_missing_or_malformed_host_is_rejected(head: str, worker: GatewayWorker) -> None:
    """RFC 9112, 3.2: a server and a proxy must not find different hosts in one request."""
    with closing(connect(worker)) as peer:
        peer.sendall(f"{head}\r\n\r\n".encode())
        assert statuses(receive_all(peer)) == [400]


def test_health_over_http_1_0_needs_no_host(worker: GatewayWorker) -> None:
    """Some load balancers use HTTP/1.0."""
    with closing(connect(worker)) as peer:
        peer.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert statuses(receive_all(peer)) == [200]


def test_without_allowed_origins_there_are_no_cors_headers() -> None:
    """Foreign pages may not read responses by default."""
    with open_gateway(model(), http="127.0.0.1:0") as worker:
        for origin in ("https://here.example", f"http://{worker.http}"):
            options = httpx.options(
                f"http://{worker.http}/api/detect", headers={"origin": origin}, verify=False, timeout=WAIT_S
            )
            read = get(worker, "/healthz", headers={"origin": origin})
            names = [*options.headers, *read.headers]
            assert not [name for name in names if name.startswith("access-control")]


def test_the_token_is_checked_before_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without a token must not make the worker receive a body."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car 0123456789abcdef\n* fedcba9876543210\n")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with open_gateway(model(), http="127.0.0.1:0", tokens=tokens) as worker:
        with closing(connect(worker)) as peer:
            peer.sendall(DETECT + b"Content-Length: 1000000\r\n\r\n")
            received = receive_all(peer)
        bearer = {"authorization": "Bearer 0123456789abcdef"}
        own = get(worker, "/skylane/v1/status", headers=bearer)
        others = get(worker, "/skylane/v1/status", headers={**bearer, "skylane-vehicle": "bus"})
        anyone = get(worker, "/metrics", headers={"authorization": "Bearer fedcba9876543210", "skylane-vehicle": "bus"})
        health = get(worker, "/healthz")
    assert statuses(received) == [401]
    assert b"www-authenticate: Bearer" in received
    assert [response.status_code for response in (own, others, anyone, health)] == [200, 403, 200, 200]


def test_with_a_certificate_only_tls_is_accepted(tmp_path: Path) -> None:
    """A token sent in plain text could be read by others."""
    authority = CertificateAuthority(tmp_path)
    issued = authority.broker(["127.0.0.1"], 1)
    key, certificate = issued.file.with_suffix(".key"), issued.file.with_suffix(".crt")
    trusted = ssl.create_default_context(cafile=str(authority.certificate_file))
    with open_gateway(model(), http="127.0.0.1:0", gateway_tls_cert=certificate, gateway_tls_key=key) as worker:
        assert httpx.get(f"https://{worker.http}/healthz", verify=trusted, timeout=WAIT_S).status_code == 200
        with pytest.raises(httpx.HTTPError):
            get(worker, "/healthz")


def test_a_clock_probe_is_echoed(worker: GatewayWorker) -> None:
    """A vehicle that sends over HTTP measures its clock offset as one over MQTT does."""
    url = f"http://{worker.http}/skylane/v1/probe"
    response = httpx.post(url, content=pack_probe(Probe("s1", 3, 5)), verify=False, timeout=WAIT_S)
    echo = unpack_echo(response.content)
    assert (echo.session, echo.sequence, echo.sent_ns) == ("s1", 3, 5)
    assert echo.received_ns <= echo.replied_ns
    rejected = [
        httpx.post(url, content=content, verify=False, timeout=WAIT_S).status_code
        for content in (b"no probe", bytes(600))
    ]
    assert rejected == [400, 413]
