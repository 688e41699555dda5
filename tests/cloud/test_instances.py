"""Several batches at the engine at a time."""

import queue
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs, Placement, Precision
from cloud.engines.tensorflow.library import instances, session_config
from cloud.models.loader import Loader
from cloud.models.model import InstancesError
from cloud.models.repository import Repository
from cloud.serving.request import Request
from shared import clock
from tests.support import tiny_models
from tests.support.batching import WAIT_S, Gated, Line
from tests.support.tiny_model import Engine, model

_SECOND = 10**9  # In nanoseconds.


def test_as_many_batches_are_inferred_at_a_time_as_there_are_instances() -> None:
    """On processors one inference leaves cores idle between its operations; a second one finds them."""
    both = threading.Barrier(2)

    class Meeting(Gated):
        def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
            both.wait(WAIT_S)  # Broken where the other one never comes.
            return super().infer(batch)

    line = Line(Meeting(is_reentrant=True), instances=2, decoders=2)
    line.put(line.request(0), line.request(1))
    line.start()
    line.finish()
    assert sorted(line.numbers()) == [0, 1]


def test_a_frame_waits_for_the_first_place_that_gets_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else frames would be answered `expired` that a free place has all the time to infer."""
    now_ns = 10**12
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    finished: queue.SimpleQueue[Request] = queue.SimpleQueue()
    line = Line(Gated(is_reentrant=True), instances=2, finish=lambda request, _: finished.put(request))
    line.start()
    line.put(line.request(0))
    assert line.engine.entered.wait(WAIT_S)
    now_ns += _SECOND  # So long does one take.
    line.engine.gate.set()
    finished.get(timeout=WAIT_S)
    line.engine.gate.clear()
    needed_ns = []
    for number in (1, 2):
        line.engine.entered.clear()
        line.put(line.request(number))
        assert line.engine.entered.wait(WAIT_S)
        needed_ns.append(line.batcher.expected_latency_ns)
    line.finish()
    assert needed_ns == [_SECOND, 2 * _SECOND]


def test_an_engine_that_takes_one_batch_at_a_time_says_so() -> None:
    """At the start, with what to do instead; not as wrong masks later."""
    tiny = model(engine=Engine())
    with pytest.raises(InstancesError, match=r"tiny runs on tensorflow, one batch at a time: .* 1 instead of 2"):
        tiny.instances = 2
    assert tiny.instances == 1


def test_a_loaded_model_infers_as_many_at_a_time_as_it_is_placed_for(tmp_path: Path) -> None:
    """What an operator sets is what its batcher starts threads for."""
    name = tiny_models.write(tmp_path, "classification")
    loader = Loader(Repository(tmp_path), Placement(device="cpu", instances=2))
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
def test_several_cores_infer_two_batches_at_a_time_unless_somebody_says_otherwise(
    device: str, placement: Placement, number: int
) -> None:
    """One batch fills the gaps that the other leaves on them; on one core, or a GPU, there are none to fill."""
    assert instances(device, placement) == number


def test_threads_spin_where_one_batch_is_inferred_at_a_time() -> None:
    """Beside another batch they take the processor from it."""
    configs = [session_config("cpu", Placement(instances=instances), Precision.FP32) for instances in (1, 2)]
    assert [config.experimental.disable_thread_spinning for config in configs] == [False, True]
