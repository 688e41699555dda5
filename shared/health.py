"""The command `skylane health`: checks the retained status of a node, and that the node reports.

The broker replaces that status by the node's last will when the node is gone. A broker that ended together with the node,
or a bridge that was cut, keeps the status: so it is believed only with a report that is not retained.
"""

import json
import queue
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

import click

from shared.errors import SkylaneError
from shared.flags import FiniteRange
from shared.messages.load import unpack_load
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_metrics import unpack_vehicle_metrics
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.topics import LOADS, VEHICLE_METRICS, VEHICLE_STATUS, WORKER_STATUS
from shared.mqtt.broker_options import BrokerOptions, broker_options, connection_from
from shared.mqtt.bus import Delivery

SILENT_AFTER_S = 5.0  # Every node reports once in two seconds.


def assert_online(connection: BrokerOptions, role: str, name: str) -> None:
    """Returns once the node is online and reports. `role` is "worker" or "vehicle".

    Connects with the node's own certificate if the connection has a folder of certificates.

    Raises:
        SkylaneError: the node is not online, or silent, its status cannot be read, or the broker does not answer in time.
    """
    is_worker = role == "worker"
    topic = WORKER_STATUS.of(worker=name) if is_worker else VEHICLE_STATUS.of(vehicle=name)
    reports = LOADS.of(worker=name) if is_worker else VEHICLE_METRICS.of(vehicle=name)
    statuses: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    sessions: queue.SimpleQueue[str] = queue.SimpleQueue()  # Sessions in the live reports.

    def reported(delivery: Delivery) -> None:
        with suppress(MessageError):
            if not delivery.retained:
                sessions.put((unpack_load if is_worker else unpack_vehicle_metrics)(delivery.payload).session)

    with connection.open(f"skylane-health-{uuid.uuid4().hex[:12]}", None, name=name) as bus:
        bus.subscribe(reports, LOADS.qos, reported)
        bus.subscribe(topic, WORKER_STATUS.qos, statuses.put)
        try:
            delivery = statuses.get(timeout=connection.connect_timeout_s)
        except queue.Empty:
            raise SkylaneError(f"{role} {name} has not announced itself at {connection.broker}") from None
        status = unpack_status(delivery.payload)
        if status.state is not NodeState.ONLINE:
            raise SkylaneError(f"{role} {name} is {status.state.value}")
        ends_s = time.monotonic() + SILENT_AFTER_S
        try:
            while delivery.retained and sessions.get(timeout=max(0.0, ends_s - time.monotonic())) != status.session:
                pass
        except queue.Empty:
            raise SkylaneError(
                f"{role} {name} is online, but silent: no report of it has arrived for {SILENT_AFTER_S:g} s, so it starts, hangs, or "
                "ended while its broker was down or a bridge was cut (an access list must let it read its own reports)"
            ) from None


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
    """Exit with 0 if the worker or vehicle NAME is online and reports, else with 1 and the reason.

    The answer takes up to two seconds, and five for a node that is silent. Connects with the certificate of that node if the broker requires one.
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
