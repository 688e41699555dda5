"""The command `skylane health`: checks the retained status of a node.

The broker replaces that status by the node's last will when the node is gone, so a positive result covers the node, its
connection and the broker.
"""

import json
import queue
import sys
import uuid
from typing import Any

import click

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.flags import FiniteRange
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.topics import VEHICLE_STATUS, WORKER_STATUS
from shared.mqtt.broker_options import BrokerOptions, broker_options, connection_from


def assert_online(connection: BrokerOptions, role: str, name: str) -> None:
    """Returns if the node is online. `role` is "worker" or "vehicle".

    Connects with the node's own certificate if the connection has a folder of certificates.

    Raises:
        SkylaneError: the node is not online, its status cannot be read, or the broker does not answer in time.
    """
    topic = WORKER_STATUS.of(worker=name) if role == "worker" else VEHICLE_STATUS.of(vehicle=name)
    statuses: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
    with connection.open(f"skylane-health-{uuid.uuid4().hex[:12]}", None, name=name) as bus:
        bus.subscribe(topic, WORKER_STATUS.qos, lambda delivery: statuses.put(delivery.payload))
        try:
            status = unpack_status(statuses.get(timeout=connection.connect_timeout_s))
        except queue.Empty:
            raise SkylaneError(f"{role} {name} has not announced itself at {connection.broker}") from None
    if status.state is not NodeState.ONLINE:
        raise SkylaneError(f"{role} {name} is {status.state.value}")


@click.command()
@broker_options
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(0.1),
    default=5.0,
    show_default=True,
    help="Time to wait for the node's status, in seconds.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the status as JSON, also that of a node that is not online."
)
@click.argument("role", type=click.Choice(["worker", "vehicle"]))
@click.argument("name")
def health(role: str, name: str, *, timeout_s: float, as_json: bool, **flags: Any) -> None:
    """Exit with 0 if the worker or vehicle NAME is online, else with 1 and the reason.

    Connects with the certificate of that node if the broker requires one.
    """
    if flags["connect_timeout_s"] is None:
        flags["connect_timeout_s"] = timeout_s
    connection, problem = connection_from(flags), ""
    try:
        assert_online(connection, role, name)
    except SkylaneError as error:
        if not as_json:
            raise
        problem = str(error)
    if as_json:
        state = {
            "role": role,
            "name": name,
            "broker": connection.broker,
            "online": not problem,
            "problem": problem or None,
        }
        click.echo(json.dumps(state))
    sys.exit(bool(problem))
