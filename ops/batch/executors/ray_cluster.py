"""Connects to a Ray cluster, or starts one on this machine."""

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil
import ray
from ray.exceptions import RayError

from ops.batch.executors.local import process_count
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError
from shared.network.endpoint import Endpoint

_STORE_BYTES = 128 << 20  # Frames on their way to an actor, for each actor.
_CONNECT_TIMEOUT_S = 10.0
_STORE_SHARE = 0.25  # Largest share of the free memory.


@contextmanager
def connected(settings: BatchSettings) -> Iterator[Sequence[Mapping[str, float]]]:
    """Connects this process to the cluster of the settings, and yields the resources of each node.

    Without an address, a cluster of this machine is started, and ended with the connection.

    Raises:
        SkylaneError: there is no such cluster, or it has other versions of Ray or Python.
    """
    address = settings.ray_address
    try:
        if address is None:
            _start(settings)
        else:
            _connect(Endpoint.parse(address))
    except (OSError, RuntimeError, ValueError, RayError) as error:
        place = "cannot be started here" if address is None else f"at {address} cannot be used"
        raise BatchError(f"a Ray cluster {place}: {' '.join(str(error).split())}") from error
    try:
        yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def _connect(address: Endpoint) -> None:
    with socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT_S):  # Ray itself tries for minutes.
        pass
    ray.init(str(address), log_to_driver=False, logging_level=logging.WARNING)


def _start(settings: BatchSettings) -> None:
    processes = process_count(settings)
    ray.init(
        "local",
        num_cpus=processes * settings.threads,
        object_store_memory=min(processes * _STORE_BYTES, int(psutil.virtual_memory().available * _STORE_SHARE)),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
