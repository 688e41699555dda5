"""What Prometheus reads of a worker."""

import queue
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud.gateway.settings import GatewaySettings
from shared.messages import topics
from shared.messages.frame import pack_frame
from shared.mqtt.bus import Delivery, Properties
from tests.support.gateway import WAIT_S, Doors, open_gateway
from tests.support.tiny_model import frame, model


@pytest.fixture(name="doors")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0")) as doors:
        yield doors


def scraped(doors: Doors) -> dict[str, float]:
    """Every sample, by its name and labels in order."""
    text = httpx.get(f"http://{doors.http}/metrics", verify=False, timeout=WAIT_S).text
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_frames_of_the_broker_are_counted_as_those_of_http(doors: Doors) -> None:
    """One worker, one set of numbers, whatever door a frame came by; under Triton's names."""
    answers: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    doors.bus.subscribe(topics.MASKS.filter(), 1, answers.put)
    topic = topics.FRAMES.of(model="tiny", vehicle="car", camera="left")
    for sequence in range(3):
        sent = frame(sequence, version="9" if sequence == 2 else None)
        doors.bus.publish(topic, pack_frame(sent), qos=1, properties=Properties(correlation=str(sent.id).encode()))
        answers.get(timeout=WAIT_S)
    httpx.post(f"http://{doors.http}/api/detect", verify=False, timeout=WAIT_S)
    told = scraped(doors)
    tiny = "model=tiny version=1"
    assert told[f"nv_inference_request_success {tiny}"] == told[f"nv_inference_count {tiny}"] == 2
    assert 1 <= told[f"nv_inference_exec_count {tiny}"] <= 2
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    spent = [told[f"nv_inference_{part}_duration_us {tiny}"] for part in parts]
    assert all(spent)
    assert sum(spent) <= told[f"nv_inference_request_duration_us {tiny}"]
    assert told[f"nv_inference_pending_request_count {tiny}"] == 0
    assert told["skylane_frames_refused_total model=tiny outcome=rejected"] == 1
    assert told["skylane_calls_total code=415 protocol=http"] == 1
    assert told["skylane_ready"] == 1
    assert told["process_resident_memory_bytes"] > 0
