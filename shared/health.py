"""Whether a node of this deployment is online, by the announcement that the broker keeps of it.

Run as a program by the containers' health checks: `python -m shared.health worker NAME`, or `vehicle NAME`. The broker
withdraws an announcement when its node is gone (the last will), so an answer proves the node, its connection and the
broker. The broker's address is SKYLANE_BROKER, as for every command, and so are the flags for certificates.
"""

import queue
import sys
import uuid
from typing import Any

import click

from shared.compression import Buffer
from shared.connection import Connection, broker_options
from shared.errors import SkylaneError
from shared.node_status import NodeState, unpack_status
from shared.topics import VEHICLE_STATUS, WORKER_STATUS


class NotOnlineError(SkylaneError):
    """A node is not online."""


def assert_online(connection: Connection, role: str, name: str) -> None:
    """Return if the `role` ("worker" or "vehicle") called `name` announced itself and is not gone since.

    Asks as that node, with its certificate where the connection has a folder of them.

    Raises:
        SkylaneError: it is not online, its announcement cannot be read, or the broker does not answer in time.
    """
    topic = WORKER_STATUS.of(worker=name) if role == "worker" else VEHICLE_STATUS.of(vehicle=name)
    announced: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
    with connection.open(f"skylane-health-{uuid.uuid4().hex[:12]}", None, name=name) as bus:
        bus.subscribe(topic, WORKER_STATUS.qos, lambda delivery: announced.put(delivery.payload))
        try:
            status = unpack_status(announced.get(timeout=connection.connect_timeout_s))
        except queue.Empty:
            raise NotOnlineError(f"{role} {name} has not announced itself at {connection.broker}") from None
    if status.state is not NodeState.ONLINE:
        raise NotOnlineError(f"{role} {name} is {status.state.value}")


@click.command()
@broker_options
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds.")
@click.argument("role", type=click.Choice(["worker", "vehicle"]))
@click.argument("name")
def health(role: str, name: str, timeout_s: float, **told: Any) -> None:
    """Exit with 0 if the node NAME is online, else with 1 and the reason."""
    given = {"connect_timeout_s": timeout_s} | {key: value for key, value in told.items() if value is not None}
    try:
        assert_online(Connection(**given), role, name)
    except SkylaneError as error:
        sys.exit(f"skylane: {error}")


if __name__ == "__main__":
    health()
