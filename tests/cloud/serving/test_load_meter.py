"""The load that a worker reports, against what its frames then experience."""

import dataclasses
import time
from typing import Any

import numpy.typing as npt
import pytest
from msgspec.structs import replace

from cloud.config import CloudConfig
from cloud.node import CloudNode
from shared import clock
from shared.clock import Deadline
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.frame import ResultMessage, Status
from shared.messages.load import WorkerLoad
from shared.models.manifest import BatchingSection
from shared.stages import Stage
from tests.support.batching import BatcherRig, GatedEngine
from tests.support.gateway import WAIT_S, Gate, Sender, open_gateway
from tests.support.tiny_model import Engine, frame, model

_MS = 1_000_000
_INFERENCE_S = 0.1


class _FixedTimeEngine(Engine):
    """Takes the same time for every batch."""

    is_reentrant = True

    def infer(self, batch: npt.NDArray[Any]) -> Outputs:
        """See Engine."""
        end_s = time.monotonic() + _INFERENCE_S
        outputs = super().infer(batch)
        time.sleep(max(0.0, end_s - time.monotonic()))
        return outputs


def _model(engine: Engine, max_size: int = 1, instances: int = 1) -> Model:
    tiny = model(engine=engine)
    manifest = tiny.manifest.model_copy(update={"batching": BatchingSection(max_size=max_size)})
    served = Model(manifest, dataclasses.replace(tiny.card, warm_ms=_INFERENCE_S * 1e3), engine)
    served.instances = instances
    return served


def _times(reply: ResultMessage) -> dict[str, int]:
    return {stamp.stage: stamp.at_ns for stamp in reply.stamps}


@pytest.mark.parametrize(("max_size", "instances", "frames"), [(1, 1, 8), (4, 2, 64)])
def test_the_wait_ends_when_the_engine_is_free(max_size: int, instances: int, frames: int) -> None:
    """Every reply predicts when an engine can take one more frame; the stamps of the last ones show when it could."""
    served = _model(_FixedTimeEngine(), max_size, instances)
    with open_gateway(served, http=None, max_frames=256) as worker:
        sender = Sender(worker.bus)
        sender.send(*(frame(sequence) for sequence in range(frames)))
        replies = sender.replies(frames)
    batches = {times["batched"]: times["inferred"] for times in map(_times, replies)}
    free_ns = sorted(batches.values())[-instances]
    longest_ns = max(inferred_ns - batched_ns for batched_ns, inferred_ns in batches.items())
    errors_ns = []
    for reply in replies:
        assert reply.load is not None
        replied_ns = _times(reply)["replied"]
        if replied_ns < free_ns:
            errors_ns.append(abs(replied_ns + reply.load.wait_ms * _MS - free_ns))
        assert round(reply.load.spacing_ms * _MS * instances) <= longest_ns
        assert reply.load.answer_ms >= _INFERENCE_S * 1e3
    assert len(errors_ns) >= frames // 2
    assert sorted(errors_ns)[len(errors_ns) // 2] < longest_ns
    assert [reply.load.queue for reply in replies if reply.load][-1] == 0


def test_every_kind_of_reply_has_the_load() -> None:
    """A vehicle whose frames are refused must learn why it should use another worker."""
    gate = Gate()
    gate.close()
    with open_gateway(_model(Engine(gate)), http=None, max_frames=1, decoders=1) as worker:
        sender = Sender(worker.bus)
        expired = sender.answer_to(replace(frame(0), deadline=Deadline.after_ms(0)))
        sender.send(*(frame(sequence) for sequence in range(1, 6)))
        (overloaded,) = sender.replies(1)
        gate.open()
        others = sender.replies(4)
        rejected = sender.answer_to(frame(6, version="9"))
    assert (expired.status, overloaded.status, rejected.status) == (
        Status.EXPIRED, Status.OVERLOADED, Status.REJECTED,
    )  # fmt: skip
    assert expired.load is not None
    assert (expired.load.queue, expired.load.free) == (0, 1)
    assert overloaded.load is not None
    assert overloaded.load.queue >= 1
    assert all(reply.load for reply in others)
    assert rejected.load is None  # This worker has no load of a version that it does not serve.


@pytest.fixture(name="now")
def _now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time of the clock; a test changes it."""
    now_ns = [10**15]
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])
    return now_ns


def _infer_once(rig: BatcherRig, now: list[int], duration_ns: int, size: int = 1) -> None:
    """Runs one batch that takes `duration_ns` by the changed clock."""
    rig.put(*(rig.request(number) for number in range(size)))
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    now[0] += duration_ns
    rig.engine.gate.set()
    for _ in range(size):
        assert rig.postprocessor.finished.acquire(timeout=WAIT_S)
    rig.engine.gate.clear()
    rig.engine.entered.clear()


@pytest.mark.parametrize("waiting", [0, 1, 7])
def test_the_wait_is_the_work_ahead_without_the_time_that_has_passed(now: list[int], waiting: int) -> None:
    """One frame is in the engine, one is decoded, and `waiting` are in the admission queue."""
    rig = BatcherRig(GatedEngine())
    _infer_once(rig, now, 100 * _MS)
    rig.put(rig.request(1))
    assert rig.engine.entered.wait(WAIT_S)
    rig.put(rig.request(2))
    now[0] += 30 * _MS
    forecast = rig.batcher.forecast(waiting)
    rig.finish()
    assert forecast.wait_ns == (100 - 30 + 100 * (1 + waiting)) * _MS
    assert forecast.answer_ns == forecast.spacing_ns == 100 * _MS


def test_a_batch_that_hangs_is_expected_to_hang_on(now: list[int]) -> None:
    """Otherwise an engine that never ends its batch would look idle, and attract all frames."""
    rig = BatcherRig(GatedEngine())
    _infer_once(rig, now, 100 * _MS)
    rig.put(rig.request(1))
    assert rig.engine.entered.wait(WAIT_S)
    now[0] += 5_000 * _MS
    wait_ns = rig.batcher.forecast(2).wait_ns
    rig.finish()
    assert wait_ns == (4_900 + 200) * _MS


def test_instances_take_batches_in_turn(now: list[int]) -> None:
    """With one of two instances busy, the next frame waits for none, and the one behind it for the busy one."""
    rig = BatcherRig(GatedEngine(is_reentrant=True), instances=2)
    _infer_once(rig, now, 100 * _MS)
    rig.put(rig.request(1))
    assert rig.engine.entered.wait(WAIT_S)
    now[0] += 30 * _MS
    waits_ms = [rig.batcher.forecast(waiting).wait_ns // _MS for waiting in range(5)]
    spacing_ns = rig.batcher.forecast(0).spacing_ns
    rig.finish()
    assert waits_ms == [0, 70, 100, 170, 200]
    assert spacing_ns == 50 * _MS


def test_waiting_frames_share_batches(now: list[int]) -> None:
    """A frame joins the batch that is not full, and its answer takes as long as that batch."""
    rig = BatcherRig(GatedEngine(), max_size=4, decoders=4)
    _infer_once(rig, now, 120 * _MS, size=4)
    waits_ms = [rig.batcher.forecast(waiting).wait_ns // _MS for waiting in (0, 3, 4, 9)]
    forecast = rig.batcher.forecast(3)
    rig.finish()
    assert waits_ms == [0, 0, 120, 240]
    assert (forecast.answer_ns, forecast.spacing_ns) == (120 * _MS, 30 * _MS)


@pytest.mark.parametrize(("decoders", "spacing_ms"), [(1, 50), (2, 25), (10, 20)])
def test_the_slowest_stage_sets_the_pace(now: list[int], decoders: int, spacing_ms: int) -> None:
    """Decoding takes 50 ms and inference 20: several decoders share the work of a fast engine."""
    rig = BatcherRig(GatedEngine(), decoders=decoders)
    request = rig.request(0)
    request.times[Stage.DECODED] += 50 * _MS
    rig.put(request)
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    now[0] += 20 * _MS
    rig.engine.gate.set()
    assert rig.postprocessor.finished.acquire(timeout=WAIT_S)
    forecast = rig.batcher.forecast(3)
    rig.finish()
    assert forecast == (3 * spacing_ms * _MS, (50 + 20) * _MS, spacing_ms * _MS)


def test_the_warm_up_is_the_estimate_without_recent_batches(now: list[int]) -> None:
    """A worker that was idle has forgotten its measurements."""
    served = _model(Engine())
    node = CloudNode([], CloudConfig(worker="w"), session="s9")
    node.served_models.set_current(node.start_serving(served))
    try:
        assert node.load_meter.loads() == {"tiny": WorkerLoad(0, 64, 0.0, 100.0, 100.0)}
        batcher = node.served_models.find("tiny", None).batcher
        batcher.inference_latency.add(1, 40 * _MS)
        assert node.load_meter.loads()["tiny"].answer_ms == 40.0
        now[0] += 11_000 * _MS
        assert node.load_meter.loads()["tiny"].answer_ms == 100.0
    finally:
        node.served_models.close()


def test_free_places_are_limited_by_count_and_by_bytes() -> None:
    """Large frames fill the queue before their number does."""
    rig = BatcherRig(GatedEngine())
    request = rig.request(0)
    request.payload = bytes(300)
    by_bytes = type(rig.admission)(max_frames=64, max_bytes=1000)
    assert by_bytes.free == 64
    by_bytes.offer(request)
    assert (by_bytes.free, by_bytes.depth_of("tiny"), by_bytes.depth_of("other")) == (2, 1, 0)
    by_count = type(rig.admission)(max_frames=2)
    by_count.offer(request)
    assert by_count.free == 1
