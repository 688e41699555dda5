"""What the metrics of a worker, a vehicle and a broker share: families, certificates, build, and a small server.

Needs prometheus-client; see the guide on metrics.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.errors import SkylaneError, reason_of
from shared.histogram import Histogram
from shared.network.endpoint import Endpoint
from shared.network.tls import certificate_expiries
from shared.runtime.machine import package_version
from shared.threads import lower_priority

BROKER_CONNECTED = "skylane_broker_connected"  # Of workers and vehicles.

_TIMEOUT_S = 5.0  # For a client, which is served alone.
_POLL_S = 0.1


class MetricsError(SkylaneError):
    """Metrics cannot be served at an address."""


def family(
    kind: Callable[..., Metric], name: str, text: str, labels: Sequence[str], values: Mapping[Any, Any]
) -> Metric:
    """Creates a metric with a sample for each combination of the labels."""
    made: Any = kind(name, text, labels=labels)
    for key, value in values.items():
        made.add_metric(key, value)
    metric: Metric = made
    return metric


def histograms(name: str, text: str, labels: Sequence[str], values: Mapping[Any, Histogram]) -> Metric:
    """Creates a histogram for each combination of the labels."""
    made = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in values.items():
        made.add_metric(key, histogram.buckets, histogram.total)
    return made


def counters(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """Creates a counter for each combination of the labels."""
    return family(CounterMetricFamily, name, text, labels, values)


def node_families(node: str, certificates: Mapping[str, str | Path | None]) -> Iterator[Metric]:
    """Yields the build of this process, and when its certificates and the revocation list beside its authority expire.

    Args:
        node: "vehicle", "worker" or "broker".
        certificates: PEM files by their part; the part `authority` may have a `crl.pem` in its folder.
    """
    build = {(node, package_version("skylane") or "unknown"): 1}
    yield family(GaugeMetricFamily, "skylane_build_info", "Kind of node, and version", ("node", "version"), build)
    files = {part: Path(file) for part, file in certificates.items() if file is not None}
    expiries = {(part,): at for part, file in files.items() if (at := _expiry(file)) is not None}
    name, text = "skylane_certificate_expiry_timestamp_seconds", "Time at which a certificate expires"
    yield family(GaugeMetricFamily, name, text, ("certificate",), expiries)
    revoked = files["authority"].with_name("crl.pem") if "authority" in files else None
    if revoked is not None and (at := _expiry(revoked, is_revocation_list=True)) is not None:
        name, text = "skylane_revocation_list_expiry_timestamp_seconds", "Time at which the revocation list expires"
        yield GaugeMetricFamily(name, text, at)


@contextmanager
def serve_metrics(address: str, collector: Collector) -> Iterator[str]:
    """Serves a collector's metrics and those of this process at HOST:PORT; yields the URL, and who can read it.

    An empty host is this machine only. The server's thread has the lowest priority and serves one client after the other,
    so that many or slow ones cost no more.

    Raises:
        SkylaneError: nothing can listen there, or a library for the collector's metrics is missing.
    """
    for _ in collector.collect():
        pass  # A missing library is reported now, not at the first scrape.
    registry = CollectorRegistry()
    registry.register(collector)
    for each in (ProcessCollector, PlatformCollector):
        each(registry=registry)
    endpoint = Endpoint.parse(address, listens=True)
    try:
        server = _Server(endpoint.host or "127.0.0.1", endpoint.port)
    except OSError as error:
        raise MetricsError(
            f"--metrics: cannot listen at {endpoint}: {reason_of(error)}: give an address of this machine and a free port"
        ) from error
    server.set_app(make_wsgi_app(registry))

    def run() -> None:
        lower_priority()
        server.serve_forever(_POLL_S)

    thread = threading.Thread(target=run, name="metrics", daemon=True)
    thread.start()
    try:
        bound = Endpoint(server.server_name, server.server_port)
        yield f"http://{bound}/metrics" + ("" if bound.is_local else ", for everyone who reaches this machine")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Logs nothing: there is a request every few seconds."""


class _Server(WSGIServer):
    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.server_name = host
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Binds without looking up the host's name, which takes long without a network."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]
        self.setup_environ()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serves a client for a limited time, also one that sends a byte now and then."""
        limit = threading.Timer(_TIMEOUT_S, _end, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().finish_request(request, client_address)
        finally:
            limit.cancel()

    def handle_error(self, *_: object) -> None:
        """Ignores a client that is slow, or has gone."""


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # It has ended.
        connection.shutdown(socket.SHUT_RDWR)


def _expiry(file: Path, *, is_revocation_list: bool = False) -> float | None:
    """Returns the earliest expiry in a PEM file, in seconds since 1970; None for a file that holds none."""
    expiries = certificate_expiries(file, is_revocation_list=is_revocation_list)
    return min(expiries).timestamp() if expiries else None
