"""Common parts of the metrics of a worker, a vehicle and a broker: certificates, build, and a small server.

Needs prometheus-client; see the guide on metrics.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.errors import SkylaneError, install_hint, reason_of
from shared.logs import get_logger
from shared.network.endpoint import Endpoint
from shared.network.http_server import BoundedHandler, BoundedHttpServer
from shared.network.tls import certificate_expiries
from shared.runtime.machine import package_version
from shared.runtime.periodic import FAILURES
from shared.threads import lower_priority

BROKER_CONNECTED = "skylane_broker_connected"  # A metric of workers and vehicles.

# Upper bounds of the buckets of durations (s): from one step of a frame at the vehicle to a frame that waits.
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
_LOG = get_logger("metrics")
_RESPONSE_S = 5.0  # Time limit for a client to take its response.
_POLL_S = 0.1


def family(kind: type[Metric], name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """Creates a metric with a sample for each combination of labels, or for each value of a single label."""
    made: Any = kind(name, text, labels=labels)  # type: ignore[call-arg]  # Each kind has it, and the method below.
    for key, value in values.items():
        made.add_metric((key,) if isinstance(key, str) else key, value)
    metric: Metric = made
    return metric


class NodeCollector(Collector):
    """The metrics that every node has. A subclass adds those that are read at each scrape, and others to `counted`."""

    def __init__(self, node: str, **certificates: str | Path | None) -> None:
        """Takes "vehicle", "worker" or "broker", and PEM files by their part; `authority` may have a `crl.pem` beside it."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # The start of the process says the same.
        self.counted = CollectorRegistry()  # Counters and histograms of prometheus-client, and this process.
        for each in (ProcessCollector, PlatformCollector):
            each(registry=self.counted)
        self._build = (node, package_version("skylane") or "unknown")
        self._files = {part: Path(file) for part, file in certificates.items() if file is not None}
        if self._files and find_spec("cryptography") is None:
            _LOG.warning("expiry of certificates is not measured", reason=install_hint("broker"))
            self._files = {}

    def histogram(self, name: str, text: str, *labels: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
        """Creates a histogram in `counted`, by default of durations. `bounds`: the upper bounds of its buckets."""
        return Histogram(name, text, labels, buckets=bounds, registry=self.counted)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield from self.counted.collect()
        text = "Rounds of periodic work, such as reports and samples, that ended with an exception"
        yield family(CounterMetricFamily, "skylane_periodic_failures", text, FAILURES.by_name(), "work")
        build = {self._build: 1}
        yield family(GaugeMetricFamily, "skylane_build_info", "Kind of node, and version", build, "node", "version")
        found = {part: certificate_expiries(file) for part, file in self._files.items()}
        expiries = {part: min(each).timestamp() for part, each in found.items() if each}
        name, text = "skylane_certificate_expiry_timestamp_seconds", "Time at which a certificate expires"
        yield family(GaugeMetricFamily, name, text, expiries, "certificate")
        if "authority" in self._files:
            revoked = self._files["authority"].with_name("crl.pem")
            name, text = "skylane_revocation_list_expiry_timestamp_seconds", "Time at which the revocation list expires"
            for expiry in certificate_expiries(revoked, is_revocation_list=True):
                yield GaugeMetricFamily(name, text, expiry.timestamp())


@contextmanager
def serve_metrics(address: str, collector: Collector) -> Iterator[str]:
    """Serves the metrics of a node at HOST:PORT; yields the URL, and who can read it.

    An empty host is this machine only. The server's threads have the lowest priority.

    Raises:
        SkylaneError: nothing can listen there.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    endpoint = Endpoint.parse(address, listens=True)
    try:
        server = _Server(endpoint.host or "127.0.0.1", endpoint.port, _Handler, response_s=_RESPONSE_S)
    except OSError as error:
        raise SkylaneError(
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


class _Handler(BoundedHandler, WSGIRequestHandler):
    pass


class _Server(BoundedHttpServer, WSGIServer):
    def server_bind(self) -> None:
        super().server_bind()
        self.setup_environ()
