"""The metrics of a worker for Prometheus."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import skylane
from tests.support.gateway import WAIT_S, Gate, GatewayWorker, Sender, open_gateway
from tests.support.tiny_model import frame, model


@pytest.fixture(name="worker")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(model(), http="127.0.0.1:0") as worker:
        yield worker


def scrape(worker: GatewayWorker) -> dict[str, float]:
    """All samples, by name and sorted labels."""
    text = httpx.get(f"http://{worker.http}/metrics", verify=False, timeout=WAIT_S).text
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_frames_over_mqtt_and_http_are_counted_together(worker: GatewayWorker) -> None:
    """A worker has one set of metrics for all frontends, with Triton's names."""
    sender = Sender(worker.bus)
    for sequence in range(3):
        sender.answer_to(frame(sequence, version="9" if sequence == 2 else None))
    httpx.post(f"http://{worker.http}/api/detect", verify=False, timeout=WAIT_S)
    samples = scrape(worker)
    tiny = "model=tiny version=1"
    assert samples[f"nv_inference_request_success {tiny}"] == samples[f"nv_inference_count {tiny}"] == 2
    assert 1 <= samples[f"nv_inference_exec_count {tiny}"] <= 2
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    times_us = [samples[f"nv_inference_{part}_duration_us {tiny}"] for part in parts]
    assert all(times_us)
    assert sum(times_us) <= samples[f"nv_inference_request_duration_us {tiny}"]
    assert samples[f"nv_inference_pending_request_count {tiny}"] == 0
    assert samples["skylane_frames_refused_total model=tiny outcome=rejected reason=not_served"] == 1
    assert samples["skylane_calls_total code=415 protocol=http"] == 1
    assert samples[f"skylane_queue_wait_seconds {tiny}"] >= 0
    for name in (
        f"frame_seconds_count {tiny}",
        f"queue_seconds_count {tiny}",
        "stage_seconds_count model=tiny stage=inferred version=1",
        f"batch_frames_sum {tiny}",
    ):
        assert samples[f"skylane_worker_{name}"] == 2
    assert sum(value for key, value in samples.items() if key.startswith("skylane_worker_frame_seconds_count")) == 2
    total_s = samples[f"skylane_worker_frame_seconds_sum {tiny}"]
    assert total_s == pytest.approx(samples[f"nv_inference_request_duration_us {tiny}"] / 1e6)
    assert samples["skylane_ready"] == 1
    assert samples["process_resident_memory_bytes"] > 0


def test_the_expected_wait_counts_the_frames_ahead() -> None:
    """Workers are added by this metric: it must grow with the queue, and not only with the time that frames took."""
    gate = Gate()
    gate.close()
    slow = model(gate)
    slow.card = replace(slow.card, warm_ms=2000.0)
    with open_gateway(slow, http="127.0.0.1:0") as worker:
        sender = Sender(worker.bus)
        try:
            sender.send(*(frame(sequence) for sequence in range(5)))
            assert gate.reached.wait(WAIT_S)
            while (samples := scrape(worker))["skylane_frames_in_flight"] < 5:
                pass  # The bus has not delivered all frames.
        finally:
            gate.open()
        assert samples["skylane_queue_wait_seconds model=tiny version=1"] >= 8.0  # Four frames wait.
        sender.replies(5)
        while scrape(worker)["skylane_frames_in_flight"]:
            pass  # The last frame is counted until its reply has been sent.


def test_a_worker_that_has_lost_the_broker_says_so(worker: GatewayWorker) -> None:
    """Its gateway still answers, so nothing else shows that vehicles do not reach it."""
    assert scrape(worker)["skylane_broker_connected"] == 1
    worker.bus.is_connected = False
    assert scrape(worker)["skylane_broker_connected"] == 0


def test_a_worker_without_a_broker_has_no_such_gauge() -> None:
    """An alert on it would never end."""
    with open_gateway(model(), http="127.0.0.1:0", no_broker=True) as worker:
        found = scrape(worker)
    assert "skylane_broker_connected" not in found
    assert found[f"skylane_build_info node=worker version={skylane.__version__}"] == 1
