"""The metrics of `skylane broker --metrics`: when its certificates and its revocation list expire."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from shared.prometheus import node_families, serve_metrics

_FILES = {"authority": "ca.crt", "server": "server.crt"}


def serve_broker_metrics(address: str, secured: Path | None) -> AbstractContextManager[str]:
    """Serves the metrics of a broker; see `serve_metrics`.

    `secured`: the folder of `skylane broker certs`; None: the broker has no certificates.
    """
    return serve_metrics(address, _BrokerCollector(secured))


class _BrokerCollector(Collector):
    """Reads the files of a secured broker at each scrape."""

    def __init__(self, secured: Path | None) -> None:
        self._files = {} if secured is None else {part: secured / name for part, name in _FILES.items()}

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        return node_families("broker", self._files)
