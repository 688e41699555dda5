"""A broker and a worker with all its endpoints."""

from pathlib import Path

import httpx
import pytest

from edge.config import EdgeConfig
from edge.transports.transport import MQTT
from ops.processes.deployment import GRPC_TRANSPORTS, HTTP_TRANSPORTS, Deployment
from tests.support import tiny_models


@pytest.mark.mosquitto
def test_a_vehicle_connects_to_the_endpoint_of_its_transport(tmp_path: Path) -> None:
    """MQTT has the broker's; the worker opens that of gRPC or HTTP only if one of the transports needs it."""
    name = tiny_models.write(tmp_path, "segmentation")
    with Deployment(models=tmp_path, model=name, transports=(MQTT, *HTTP_TRANSPORTS)) as deployment:
        for transport, key, value in (
            (MQTT, "broker", deployment.broker.url),
            *((each, "worker_addresses", (deployment.http,)) for each in HTTP_TRANSPORTS),
            *((each, "worker_addresses", (deployment.grpc,)) for each in GRPC_TRANSPORTS),
        ):
            keys = deployment.endpoint(transport)
            assert keys == {"transport": transport, key: value}
            assert getattr(EdgeConfig.model_validate(keys), key) == value
        assert httpx.get(f"http://{deployment.http}/healthz").status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://{deployment.grpc}")
