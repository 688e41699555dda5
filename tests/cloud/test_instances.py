"""Concurrent batches of one model."""

import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs, Placement, Precision
from cloud.engines.tensorflow.library import instances, session_config
from cloud.models.loader import ModelLoader
from cloud.models.model import InstancesError
from cloud.models.repository import Repository
from shared import clock
from tests.cloud.batching_rig import WAIT_S, Gated, Line
from tests.cloud.channel import Engine, model
from tests.cloud.engines import tiny as tiny_models

_SECOND = 10**9  # In nanoseconds.


def test_batches_run_concurrently_up_to_the_number_of_instances() -> None:
    """A single inference leaves cores idle between its operations."""
    both = threading.Barrier(2)

    class Meeting(Gated):
        def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
            both.wait(WAIT_S)  # Raises if there is only one batch.
            return super().infer(batch)

    line = Line(Meeting(is_reentrant=True), instances=2, decoders=2)
    line.put(line.request(0), line.request(1))
    line.start()
    line.finish()
    assert sorted(line.numbers()) == [0, 1]


def test_the_expected_latency_counts_idle_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise frames would be refused as `expired` although an instance is idle."""
    now_ns = 10**12
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    line = Line(Gated(is_reentrant=True), instances=2)
    line.start()
    line.put(line.request(0))
    assert line.engine.entered.wait(WAIT_S)
    now_ns += _SECOND  # The duration of one inference.
    line.engine.gate.set()
    assert line.postprocessor.finished.acquire(timeout=WAIT_S)
    line.engine.gate.clear()
    needed_ns = []
    for number in (1, 2):
        line.engine.entered.clear()
        line.put(line.request(number))
        assert line.engine.entered.wait(WAIT_S)
        needed_ns.append(line.batcher.expected_latency_ns)
    line.finish()
    assert needed_ns == [_SECOND, 2 * _SECOND]


def test_an_engine_that_is_not_reentrant_has_one_instance() -> None:
    """The error at the start has a remedy."""
    tiny = model(engine=Engine())
    with pytest.raises(InstancesError, match=r"tiny runs on tensorflow, one batch at a time: .* 1 instead of 2"):
        tiny.instances = 2
    assert tiny.instances == 1


def test_the_placement_sets_the_number_of_instances(tmp_path: Path) -> None:
    """The batcher starts one thread for each."""
    name = tiny_models.write(tmp_path, "classification")
    loader = ModelLoader(Repository(tmp_path), Placement(device="cpu", instances=2))
    with loader.load(name) as loaded:
        assert loaded.instances == 2


@pytest.mark.parametrize(
    ("device", "placement", "number"),
    [
        ("cpu", Placement(intra_threads=4), 2),
        ("cpu", Placement(intra_threads=1), 1),
        ("gpu:0", Placement(intra_threads=4), 1),
        ("cpu", Placement(intra_threads=4, instances=1), 1),
        ("gpu:0", Placement(instances=3), 3),
    ],
)
def test_the_default_number_of_instances_depends_on_the_device(device: str, placement: Placement, number: int) -> None:
    """A second batch uses the idle time of several cores; one core or a GPU has none."""
    assert instances(device, placement) == number


def test_threads_spin_only_with_a_single_instance() -> None:
    """Spinning threads would take the processor from the other batch."""
    configs = [session_config("cpu", Placement(instances=instances), Precision.FP32) for instances in (1, 2)]
    assert [config.experimental.disable_thread_spinning for config in configs] == [False, True]
