from shared import clock
from shared.clock import Deadline
from shared.inference.engine import InferenceError, ModelUnavailableError
from shared.messages.frame import Status
from shared.stages import Stage
from tests.support.batching import WAIT_S, BatcherRig, GatedEngine


def test_waiting_frames_form_a_batch_and_get_their_own_masks() -> None:
    """The batch fills while the engine is busy."""
    rig = BatcherRig(GatedEngine(), max_size=4, decoders=6)
    rig.put(rig.request(0))
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    rig.put(*(rig.request(number) for number in range(1, 7)))
    rig.finish()
    assert rig.numbers() == list(range(7))
    assert rig.engine.sizes == [1, 4, 2]
    assert [request.batch_size for request, _ in rig.done] == [1, 4, 4, 4, 4, 2, 2]


def test_an_unexpected_error_of_the_engine_fails_one_frame() -> None:
    """The next frame is inferred."""
    rig = BatcherRig(GatedEngine(error=ValueError("a bug"), poison=(0,)))
    rig.engine.gate.set()
    rig.put(rig.request(0))
    rig.start()
    rig.put(rig.request(1))
    rig.finish()
    assert rig.numbers() == [1]


def test_the_slots_are_limited_by_the_batch_size() -> None:
    """Decoded frames have left the fair queue; a released slot can be reserved again."""
    rig = BatcherRig(GatedEngine(), max_size=2)
    assert [rig.batcher.reserve() for _ in range(3)] == [True, True, False]
    rig.batcher.release()
    assert rig.batcher.reserve()
    assert not rig.batcher.reserve()


def test_all_frames_of_a_batch_have_the_same_inference_time() -> None:
    """The last frame of a batch must not look slower than the first."""
    rig = BatcherRig(GatedEngine(), max_size=4)
    rig.put(*(rig.request(number) for number in range(4)))
    rig.start()
    rig.finish()
    assert rig.engine.sizes == [4]
    batched = [request.times[Stage.BATCHED] for request, _ in rig.done]
    inferred = [request.times[Stage.INFERRED] for request, _ in rig.done]
    assert max(batched) <= min(inferred)
    assert all(request.image is None for request, _ in rig.done)


def test_a_fixed_batch_size_of_the_engine_limits_batches() -> None:
    """The manifest may allow more."""
    rig = BatcherRig(GatedEngine(batch_size=1), max_size=4, decoders=2)
    rig.put(rig.request(0), rig.request(1))
    rig.start()
    rig.finish()
    assert rig.engine.sizes == [1, 1]
    assert [request.batch_size for request, _ in rig.done] == [1, 1]


def test_a_batch_waits_for_frames_that_are_being_decoded() -> None:
    """`max_wait_ms` trades latency for throughput."""
    rig = BatcherRig(GatedEngine(), max_size=2, max_wait_ms=WAIT_S * 1000)
    rig.engine.gate.set()
    rig.put(rig.request(0))
    assert rig.batcher.reserve()
    rig.start()
    rig.batcher.put(rig.request(1))
    rig.finish()
    assert rig.engine.sizes == [2]


def test_a_wait_without_effect_is_not_repeated() -> None:
    """A lone vehicle with one frame in flight would wait with every frame."""
    rig = BatcherRig(GatedEngine(), max_size=2, max_wait_ms=1)
    rig.engine.gate.set()
    rig.put(rig.request(0))
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    rig.engine.entered.clear()
    rig.batcher.max_wait_ns = 3_600 * 10**9
    rig.put(rig.request(1))
    assert rig.engine.entered.wait(WAIT_S)
    rig.finish()
    assert rig.engine.sizes == [1, 1]


def test_a_batch_does_not_wait_beyond_a_deadline() -> None:
    """The earliest deadline in the batch ends the wait."""
    rig = BatcherRig(GatedEngine(), max_size=2, max_wait_ms=3_600_000)
    rig.engine.gate.set()
    rig.put(rig.request(0, budget_ms=2000))
    assert rig.batcher.reserve()  # And never put.
    rig.batcher.inference_latency.add(2, 1_500_000_000)
    rig.start()
    while not rig.engine.entered.wait(0.01) and not rig.refused:
        pass  # A machine that is too busy to infer it in time refuses it.
    rig.batcher.release()
    rig.finish()
    assert len(rig.done) + len(rig.refused) == 1


def test_closing_ends_the_wait() -> None:
    """A drain must not wait for frames that cannot arrive."""
    rig = BatcherRig(GatedEngine(), max_size=8, max_wait_ms=3_600_000)
    rig.put(rig.request(0))
    assert rig.batcher.reserve()
    rig.start()
    rig.batcher.release()
    rig.finish()
    assert rig.numbers() == [0]


def test_closing_waits_for_frames_that_are_being_decoded() -> None:
    """A version that is replaced loses no frame, but gives no more slots."""
    rig = BatcherRig(GatedEngine())
    assert rig.batcher.reserve()
    rig.engine.gate.set()
    rig.start()
    rig.batcher.close()
    assert not rig.batcher.reserve()
    rig.batcher.put(rig.request(0))
    rig.threads.join(WAIT_S)
    assert rig.numbers() == [0]


def test_expired_frames_are_not_inferred() -> None:
    """The other frames of the batch are."""
    rig = BatcherRig(GatedEngine(), max_size=3)
    long_ago_ns = clock.now_ns() - 3_600 * 10**9
    rig.put(
        *(rig.request(number, 3_500_000, received_ns) for number, received_ns in enumerate((None, long_ago_ns, None)))
    )
    rig.start()
    rig.finish()
    assert rig.numbers() == [0, 2]
    assert rig.engine.sizes == [2]
    assert rig.answers() == [(1, Status.EXPIRED, "the deadline passed before inference")]


def test_frames_that_would_be_inferred_too_late_are_not_inferred() -> None:
    """The time of the engine goes to frames that can meet their deadline."""
    rig = BatcherRig(GatedEngine(), max_size=2)
    rig.batcher.inference_latency.add(1, 3_600 * 10**9)
    assert not rig.batcher.can_meet(Deadline.after_ms(60_000))
    assert rig.batcher.can_meet(Deadline.after_ms(3_700_000))
    assert rig.batcher.can_meet(Deadline.NEVER)
    rig.put(rig.request(0, 60_000), rig.request(1))
    rig.start()
    rig.finish()
    assert rig.numbers() == [1]
    assert rig.answers() == [(0, Status.EXPIRED, "inference would end after the deadline")]


def test_an_idle_worker_tries_what_its_fastest_inference_can_meet() -> None:
    """Of frames with a deadline at the 75 % quantile, three quarters would be in time; refusing them wins nothing."""
    rig = BatcherRig(GatedEngine())
    for seconds in (1_000, *[100_000] * 19):
        rig.batcher.inference_latency.add(1, seconds * 10**9)
    assert rig.batcher.can_meet(Deadline.after_ms(2_000_000))
    rig.put(rig.request(0, 2_000_000))
    rig.start()
    rig.finish()
    assert rig.numbers() == [0]


def test_one_slow_inference_blocks_an_idle_worker_for_a_few_frames_only() -> None:
    """Refused frames bring no new measurement, so after three of them one is inferred."""
    rig = BatcherRig(GatedEngine())
    rig.batcher.inference_latency.add(1, 3_600 * 10**9)
    deadline = Deadline.after_ms(60_000)
    for _ in range(3):
        assert not rig.batcher.can_meet(deadline)
        rig.batcher.count_refusal()
    assert rig.batcher.can_meet(deadline)
    rig.engine.gate.set()
    rig.put(rig.request(0, 60_000))
    rig.start()
    assert rig.postprocessor.finished.acquire(timeout=WAIT_S)
    assert rig.batcher.can_meet(deadline)  # By the new measurement.
    rig.finish()
    assert rig.numbers() == [0]


def test_a_batch_is_cut_to_meet_a_deadline() -> None:
    """A larger batch would end after the deadline of one of its frames."""
    rig = BatcherRig(GatedEngine(), max_size=4)
    rig.batcher.inference_latency.add(1, 1_000 * 10**9)
    rig.batcher.inference_latency.add(4, 360_000 * 10**9)
    rig.put(*(rig.request(number, budget_ms=2_500_000) for number in range(4)))
    rig.engine.gate.set()
    rig.start()
    rig.finish()
    assert rig.numbers() == [0, 1, 2, 3]
    assert rig.engine.sizes == [2, 2]


def test_after_a_cut_fewer_slots_are_free() -> None:
    """Decoded frames are served in order of arrival, so that those of a greedy vehicle would be first."""
    rig = BatcherRig(GatedEngine(), max_size=4)
    rig.batcher.inference_latency.add(1, 1_000 * 10**9)
    rig.batcher.inference_latency.add(4, 360_000 * 10**9)
    rig.put(*(rig.request(number, budget_ms=1_500_000) for number in range(4)))
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    assert not rig.batcher.reserve()  # Three wait where one batch of one frame was cut.
    rig.finish()
    assert rig.engine.sizes[0] == 1


def test_the_latency_of_postprocessing_counts() -> None:
    """A result that is ready after its deadline is useless."""
    rig = BatcherRig(GatedEngine())
    rig.postprocessor.latency.add(3_600 * 10**9)
    rig.put(rig.request(0, budget_ms=60_000))
    rig.start()
    rig.finish()
    assert rig.answers() == [(0, Status.EXPIRED, "inference would end after the deadline")]


def test_a_model_that_fails_on_a_frame_fails_that_frame_alone() -> None:
    """The second attempt is made with each frame alone."""
    rig = BatcherRig(GatedEngine(error=InferenceError("out of range"), poison=(1,)), max_size=3)
    rig.put(*(rig.request(number) for number in range(3)))
    rig.start()
    rig.finish()
    assert rig.engine.sizes == [3, 1, 1, 1]
    assert rig.numbers() == [0, 2]
    assert rig.answers() == [(1, Status.FAILED, "poison: out of range")]


def test_an_unavailable_model_is_tried_once() -> None:
    """Its server is down or slow, which is not the fault of any frame."""
    rig = BatcherRig(GatedEngine(error=ModelUnavailableError("the model's server cannot be reached")), max_size=3)
    rig.put(*(rig.request(number) for number in range(3)))
    rig.start()
    rig.finish()
    assert rig.engine.sizes == [3]
    assert rig.answers() == [(number, Status.FAILED, "the model's server cannot be reached") for number in range(3)]


def test_a_frame_is_tried_at_most_twice() -> None:
    """A third attempt would only delay other frames."""
    rig = BatcherRig(GatedEngine(error=InferenceError("out of range")))
    rig.put(rig.request(0))
    rig.start()
    rig.finish()
    assert rig.engine.sizes == [1, 1]
    assert rig.answers() == [(0, Status.FAILED, "poison: out of range")]


def test_the_last_waiting_frame_is_processed_by_the_engine_thread() -> None:
    """Waking another thread takes longer than the work; with more frames waiting, the engine must continue."""
    rig = BatcherRig(GatedEngine())
    rig.put(rig.request(1))
    rig.start()
    assert rig.engine.entered.wait(WAIT_S)
    rig.put(rig.request(2))
    rig.finish()
    assert rig.numbers() == [1, 2]
    assert rig.postprocessor.processed == [2]
