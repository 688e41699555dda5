"""Opens the dispatcher of a configuration."""

from edge.config import EdgeConfig
from edge.dispatch.dispatcher import DISPATCHERS, Dispatcher
from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_directory import WorkerDirectory
from edge.transports.table import TRANSPORTS
from shared.registry import load


def open_dispatcher(config: EdgeConfig, workers: WorkerDirectory, clocks: WorkerClocks) -> Dispatcher | None:
    """Returns the dispatcher for the workers of a transport; None if the transport calls the workers itself."""
    if TRANSPORTS[config.transport].endpoint != "broker":
        return None
    dispatcher: Dispatcher = load("dispatcher", DISPATCHERS, config.dispatch)(workers, clocks)
    return dispatcher
