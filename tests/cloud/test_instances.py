"""Concurrent batches of one model."""

import threading

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.tensorflow.runtime import instances, session_config, tf
from cloud.models.loader import ModelLoader
from shared import clock
from shared.clock import Deadline
from shared.errors import SkylaneError
from shared.inference.engine import Outputs
from shared.models.manifest import Placement, Precision
from tests.support.batching import WAIT_S, BatcherRig, GatedEngine
from tests.support.tiny_model import Engine, model
from tests.support.workshop import Workshop

_SECOND_NS = 10**9


def test_batches_run_concurrently_up_to_the_number_of_instances() -> None:
    """A single inference leaves cores idle between its operations."""
    both = threading.Barrier(2)

    class Meeting(GatedEngine):
        def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
            both.wait(WAIT_S)  # Raises if there is only one batch.
            return super().infer(batch)

    rig = BatcherRig(Meeting(is_reentrant=True), instances=2, decoders=2)
    rig.put(rig.request(0), rig.request(1))
    rig.start()
    rig.finish()
    assert sorted(rig.numbers()) == [0, 1]


def test_the_expected_latency_counts_idle_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise frames would be refused as `expired` although an instance is idle."""
    now_ns = 10**12
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    rig = BatcherRig(GatedEngine(is_reentrant=True), instances=2)
    rig.start()
    rig.put(rig.request(0))
    assert rig.engine.entered.wait(WAIT_S)
    now_ns += _SECOND_NS  # The duration of one inference.
    rig.engine.gate.set()
    assert rig.postprocessor.finished.acquire(timeout=WAIT_S)
    rig.engine.gate.clear()
    meets = []
    for number in (1, 2):
        rig.engine.entered.clear()
        rig.put(rig.request(number))
        assert rig.engine.entered.wait(WAIT_S)
        meets.append(
            [rig.batcher.can_meet(Deadline(now_ns + ends * _SECOND_NS - early)) for ends in (1, 2) for early in (1, 0)]
        )
    rig.finish()
    assert meets == [[False, True, True, True], [False, False, False, True]]


def test_an_engine_that_is_not_reentrant_has_one_instance() -> None:
    """The error at the start has a remedy."""
    tiny = model(engine=Engine())
    with pytest.raises(SkylaneError, match=r"tiny runs on tensorflow, one batch at a time: .* 1 instead of 2"):
        tiny.instances = 2
    assert tiny.instances == 1


def test_the_placement_sets_the_number_of_instances(workshop: Workshop) -> None:
    """The batcher starts one thread for each; an engine that cannot run as many is refused at the start."""
    workshop.add("m", workshop.graph(lambda scores: tf.argmax(scores, -1)))
    for placement in (Placement(device="cpu", instances=3), Placement(device="cpu", intra_threads=4)):
        loader = ModelLoader(workshop.repository, placement)
        with loader.load(loader.find("m")) as loaded:
            assert loaded.instances == (placement.instances or 2)
    loader = ModelLoader(workshop.repository, Placement(device="cpu", instances=2), engine="openvino")
    with pytest.raises(SkylaneError, match="m runs on openvino, one batch at a time"):
        loader.load(loader.find("m"))


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
