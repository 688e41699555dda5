"""Control requests with the certificates of other roles than an operator's."""

import uuid
from pathlib import Path

import pytest

from cloud.control_cli import ControlTimeoutError, ask
from edge.config import EdgeConfig
from ops.broker.broker import Broker
from shared.messages.control import ControlRequest, Verb

pytestmark = pytest.mark.mosquitto


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            "car-1",
            r"the broker did not accept the request to worker worker-1 \(Not authorized\): only operators .*--certs",
        ),
        ("worker-1", r"the broker did not accept the request to worker worker-1 \(Not authorized\): only operators"),
        ("anna", "worker worker-1 does not accept control requests"),  # There is no such worker, but she may ask it.
    ],
)
def test_a_request_with_another_nodes_certificate_is_one_sentence(
    secured: Broker, certs: Path, node: str, message: str
) -> None:
    """The certificates of a machine lie side by side, and `--tls-cert` takes any of them."""
    request = ControlRequest("operator", uuid.uuid4().hex, Verb.LIST, "")
    bus = EdgeConfig(broker=secured.url, certs=certs).connection.open(f"test-{request.nonce}", None, name=node)
    try:
        with pytest.raises(ControlTimeoutError, match=message):
            ask(bus, "worker-1", request, timeout_s=60)
    finally:
        bus.close()
