"""The pods of an overlay run as processes: started, probed, called and stopped as a kubelet does it."""

import queue
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.topics import FRAMES, MASKS, FrameId
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus
from shared.mqtt.paho_bus import MqttBus
from tests.kubernetes.pods import HOST, Pod, broker_pod, create_secrets, worker_pod
from tests.kubernetes.rendering import kinds, needs_kubectl, pod_of
from tests.monitoring.promtool import prometheus, query, wait_for
from tests.support.http_calls import png
from tests.support.tiny_models import HEIGHT, WIDTH

pytestmark = [needs_kubectl, pytest.mark.mosquitto]
WAIT_S = 60.0
FRAMES_IN_FLIGHT = 12  # On a machine with a load of 14, they still need less than the 30 s that a worker drains.


@dataclass(frozen=True, slots=True)
class Cluster:
    """The broker and a worker of an overlay, and what a vehicle needs to connect."""

    broker: Broker
    worker: Pod
    vehicle: str
    certs: Path | None
    secrets: dict[str, dict[str, bytes]]

    def connect(self) -> MqttBus:
        """Connects as the vehicle."""
        return BrokerOptions(self.broker.url, certs=self.certs).open("vehicle", None, name=self.vehicle)

    def call(self, path: str, token: str = "", **request: Any) -> httpx.Response:
        """Calls the gateway by the name of its Service, and verifies its certificate."""
        context: ssl.SSLContext | bool = False
        if self.certs is not None:
            context = ssl.create_default_context(cadata=self.secrets["gateway"]["ca.crt"].decode())
        headers = {"host": "gateway", "authorization": f"Bearer {token}"}
        with httpx.Client(verify=context, timeout=WAIT_S, trust_env=False, headers=headers) as client:
            url = f"{self.worker.url}{path}"
            return client.request(request.pop("method", "GET"), url, extensions={"sni_hostname": "gateway"}, **request)


@pytest.fixture
def start(tmp_path: Path, slow_repository: Path) -> Iterator[Callable[[str], Cluster]]:
    """Returns a function that starts the broker and a worker of an overlay and waits until the worker is ready."""
    with ExitStack() as stack:

        def run(overlay: str) -> Cluster:
            secrets: dict[str, dict[str, bytes]] = {}
            certs = None
            if overlay != "development":
                secrets = create_secrets(tmp_path)
                certs = tmp_path / "certs" / "nodes"
                CertificateAuthority(certs).node(Role.VEHICLE, "car-1", 1)
            broker = stack.enter_context(broker_pod(overlay, tmp_path / "broker", secrets))
            worker = stack.enter_context(worker_pod(overlay, tmp_path, slow_repository, broker, secrets))
            worker.start()
            return Cluster(broker, worker, "car-1", certs, secrets)

        yield run


def publish(bus: Bus, cluster: Cluster, count: int) -> "queue.SimpleQueue[ResultMessage]":
    """Sends frames as the vehicle; returns the queue of the replies."""
    answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
    bus.subscribe(
        MASKS.filter(vehicle=cluster.vehicle), 1, lambda delivery: answers.put(unpack_result(delivery.payload))
    )
    for number in range(count):
        message = FrameMessage(
            id=FrameId(cluster.vehicle, "left", "s1", number),
            model="foreign",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            stamp_ns=0,
            data=bytes(HEIGHT * WIDTH * 3),
        )
        topic = FRAMES.of(model="foreign", vehicle=cluster.vehicle, camera="left")
        bus.publish(topic, pack_frame(message), qos=1)
    return answers


@pytest.mark.parametrize("overlay", ["development", "secured"])
def test_a_worker_is_ready_answers_and_drains_within_its_grace_period(
    overlay: str, start: Callable[[str], Cluster]
) -> None:
    """SIGTERM arrives while frames wait for a slow engine and a caller waits for its response; each gets its answer."""
    cluster = start(overlay)
    worker = cluster.worker
    assert worker.passes("readinessProbe")
    assert worker.passes("livenessProbe")
    assert worker.is_online_at(cluster.broker)
    token = "any"
    if cluster.secrets:
        token = dict(line.split() for line in cluster.secrets["gateway"]["tokens"].decode().splitlines())["client"]
    called: queue.SimpleQueue[httpx.Response] = queue.SimpleQueue()
    image = png(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    with cluster.connect() as bus:
        answers = publish(bus, cluster, FRAMES_IN_FLIGHT)
        results = [answers.get(timeout=WAIT_S)]
        request = {"method": "POST", "content": image, "headers": {"content-type": "image/png"}}
        caller = threading.Thread(target=lambda: called.put(cluster.call("/api/detect", token, **request)))
        caller.start()
        worker.await_lines("vehicle joined", 2)  # The vehicle's frames and the call are in the queue.
        worker.process.send_signal(signal.SIGTERM)
        assert answers.qsize() < FRAMES_IN_FLIGHT - len(results), "no frame was in flight"
        grace_s = pod_of(overlay, "worker")["spec"]["terminationGracePeriodSeconds"]
        assert worker.process.wait(timeout=grace_s) == 0, worker.log.read_text()
        results += [answers.get(timeout=WAIT_S) for _ in range(FRAMES_IN_FLIGHT - len(results))]
    caller.join()
    assert {result.status for result in results} == {Status.ANSWERED}
    assert {result.id.sequence for result in results} == {*range(FRAMES_IN_FLIGHT)}
    assert called.get(timeout=WAIT_S).status_code == 200
    assert not worker.passes("readinessProbe")


def test_prometheus_evaluates_the_query_of_keda(start: Callable[[str], Cluster], tmp_path: Path) -> None:
    """Prometheus reads a worker as the PodMonitor says; the query of the ScaledObject gives the wait of all workers."""
    cluster = start("autoscaling/keda")
    (monitor,) = kinds("autoscaling/keda", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (scaler,) = kinds("autoscaling/keda", "ScaledObject")
    (trigger,) = [each["metadata"] for each in scaler["spec"]["triggers"] if each["type"] == "prometheus"]
    files = {}
    for key in (endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]):
        files[key["key"]] = tmp_path / key["key"]
        files[key["key"]].write_bytes(cluster.secrets[key["name"]][key["key"]])
    # The operator adds the labels `namespace` and `pod`. Three targets are the same worker, as if there were more.
    labels = [("skylane", "worker-a"), ("skylane", "worker-b"), ("other", "worker-c")]
    job = {
        "job_name": "workers",
        "scrape_interval": "2s",
        "scrape_timeout": "2s",
        "scheme": endpoint["scheme"],
        "metrics_path": endpoint["path"],
        "authorization": {"credentials_file": str(files[endpoint["authorization"]["credentials"]["key"]])},
        "tls_config": {
            "ca_file": str(files[endpoint["tlsConfig"]["ca"]["secret"]["key"]]),
            "server_name": endpoint["tlsConfig"]["serverName"],
        },
        "static_configs": [
            {
                "targets": [f"{HOST}:{cluster.worker.ports[endpoint['port']]}"],
                "labels": {"namespace": namespace, "pod": pod},
            }
            for namespace, pod in labels
        ],
    }
    with prometheus(tmp_path, {"scrape_configs": [job]}) as client, cluster.connect() as bus:
        wait_for(lambda: len(query(client, "up == 1")) == len(labels))
        answers = publish(bus, cluster, 5 * FRAMES_IN_FLIGHT)
        wait_for(lambda: len(query(client, "max_over_time(skylane_queue_wait_seconds[1m]) > 0")) == len(labels))
        (found,) = query(client, trigger["query"])
        assert float(found["value"][1]) > 0
        (workers,) = query(client, trigger["query"].replace("sum(", "count(", 1))
        assert float(workers["value"][1]) == len(labels) - 1
        assert answers.get(timeout=WAIT_S).status is Status.ANSWERED
