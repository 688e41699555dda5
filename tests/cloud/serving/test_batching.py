from cloud.engines.engine import InferenceError, UnavailableError
from shared import clock
from shared.messages.frame import Status
from shared.stages import Stage
from tests.cloud.batching_rig import WAIT_S, Gated, Line


def test_waiting_frames_form_a_batch_and_get_their_own_masks() -> None:
    """The batch fills while the engine is busy."""
    line = Line(Gated(), max_size=4, decoders=6)
    line.put(line.request(0))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.put(*(line.request(number) for number in range(1, 7)))
    line.finish()
    assert line.numbers() == list(range(7))
    assert line.engine.sizes == [1, 4, 2]
    assert [request.batch_size for request, _ in line.done] == [1, 4, 4, 4, 4, 2, 2]


def test_an_unexpected_error_of_the_engine_fails_one_frame() -> None:
    """The next frame is inferred."""
    line = Line(Gated(error=ValueError("a bug"), poison=(0,)))
    line.engine.gate.set()
    line.put(line.request(0))
    line.start()
    line.put(line.request(1))
    line.finish()
    assert line.numbers() == [1]


def test_the_slots_are_limited_by_the_batch_size() -> None:
    """Decoded frames have left the fair queue; a released slot can be reserved again."""
    line = Line(Gated(), max_size=2)
    assert [line.batcher.reserve() for _ in range(3)] == [True, True, False]
    line.batcher.release()
    assert line.batcher.reserve()
    assert not line.batcher.reserve()


def test_all_frames_of_a_batch_have_the_same_inference_time() -> None:
    """The last frame of a batch must not look slower than the first."""
    line = Line(Gated(), max_size=4)
    line.put(*(line.request(number) for number in range(4)))
    line.start()
    line.finish()
    assert line.engine.sizes == [4]
    batched = [request.times[Stage.BATCHED] for request, _ in line.done]
    inferred = [request.times[Stage.INFERRED] for request, _ in line.done]
    assert max(batched) <= min(inferred)
    assert all(request.image is None for request, _ in line.done)


def test_a_fixed_batch_size_of_the_engine_limits_batches() -> None:
    """The manifest may allow more."""
    line = Line(Gated(batch_size=1), max_size=4, decoders=2)
    line.put(line.request(0), line.request(1))
    line.start()
    line.finish()
    assert line.engine.sizes == [1, 1]
    assert [request.batch_size for request, _ in line.done] == [1, 1]


def test_a_batch_waits_for_frames_that_are_being_decoded() -> None:
    """`max_wait_ms` trades latency for throughput."""
    line = Line(Gated(), max_size=2, max_wait_ms=WAIT_S * 1000)
    line.engine.gate.set()
    line.put(line.request(0))
    assert line.batcher.reserve()
    line.start()
    line.batcher.put(line.request(1))
    line.finish()
    assert line.engine.sizes == [2]


def test_a_wait_without_effect_is_not_repeated() -> None:
    """A lone vehicle with one frame in flight would wait with every frame."""
    line = Line(Gated(), max_size=2, max_wait_ms=1)
    line.engine.gate.set()
    line.put(line.request(0))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.engine.entered.clear()
    line.batcher._max_wait_ns = 3_600 * 10**9
    line.put(line.request(1))
    assert line.engine.entered.wait(WAIT_S)
    line.finish()
    assert line.engine.sizes == [1, 1]


def test_a_batch_does_not_wait_beyond_a_deadline() -> None:
    """The earliest deadline in the batch ends the wait."""
    line = Line(Gated(), max_size=2, max_wait_ms=3_600_000)
    line.engine.gate.set()
    line.put(line.request(0, budget_ms=2000))
    assert line.batcher.reserve()  # And never put.
    line.batcher._inference.add(2, 1_500_000_000)
    line.start()
    while not line.engine.entered.wait(0.01) and not line.refused:
        pass  # A machine that is too busy to infer it in time refuses it.
    line.batcher.release()
    line.finish()
    assert len(line.done) + len(line.refused) == 1


def test_closing_ends_the_wait() -> None:
    """A drain must not wait for frames that cannot arrive."""
    line = Line(Gated(), max_size=8, max_wait_ms=3_600_000)
    line.put(line.request(0))
    assert line.batcher.reserve()
    line.start()
    line.batcher.release()
    line.finish()
    assert line.numbers() == [0]


def test_closing_waits_for_frames_that_are_being_decoded() -> None:
    """A version that is replaced loses no frame, but gives no more slots."""
    line = Line(Gated())
    assert line.batcher.reserve()
    line.engine.gate.set()
    line.start()
    line.batcher.close()
    assert not line.batcher.reserve()
    line.batcher.put(line.request(0))
    line.threads.join(WAIT_S)
    assert line.numbers() == [0]


def test_expired_frames_are_not_inferred() -> None:
    """The other frames of the batch are."""
    line = Line(Gated(), max_size=3)
    long_ago_ns = clock.now_ns() - 3_600 * 10**9
    line.put(
        *(line.request(number, 3_500_000, received_ns) for number, received_ns in enumerate((None, long_ago_ns, None)))
    )
    line.start()
    line.finish()
    assert line.numbers() == [0, 2]
    assert line.engine.sizes == [2]
    assert line.answers() == [(1, Status.EXPIRED, "the deadline passed before inference")]


def test_frames_that_would_be_inferred_too_late_are_not_inferred() -> None:
    """The time of the engine goes to frames that can meet their deadline."""
    line = Line(Gated(), max_size=2)
    line.batcher._inference.add(1, 3_600 * 10**9)
    assert line.batcher.expected_latency_ns >= 3_600 * 10**9
    line.put(line.request(0, 60_000), line.request(1))
    line.start()
    line.finish()
    assert line.numbers() == [1]
    assert line.answers() == [(0, Status.EXPIRED, "inference would end after the deadline")]


def test_a_batch_is_cut_to_meet_a_deadline() -> None:
    """A larger batch would end after the deadline of one of its frames."""
    line = Line(Gated(), max_size=4)
    line.batcher._inference.add(1, 1_000 * 10**9)
    line.batcher._inference.add(4, 360_000 * 10**9)
    line.put(*(line.request(number, budget_ms=2_500_000) for number in range(4)))
    line.engine.gate.set()
    line.start()
    line.finish()
    assert line.numbers() == [0, 1, 2, 3]
    assert line.engine.sizes == [2, 2]


def test_after_a_cut_fewer_slots_are_free() -> None:
    """Decoded frames are served in order of arrival, so that those of a greedy vehicle would be first."""
    line = Line(Gated(), max_size=4)
    line.batcher._inference.add(1, 1_000 * 10**9)
    line.batcher._inference.add(4, 360_000 * 10**9)
    line.put(*(line.request(number, budget_ms=1_500_000) for number in range(4)))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    assert not line.batcher.reserve()  # Three wait where one batch of one frame was cut.
    line.finish()
    assert line.engine.sizes[0] == 1


def test_the_latency_of_postprocessing_counts() -> None:
    """A result that is ready after its deadline is useless."""
    line = Line(Gated())
    line.postprocessor.latency.add(3_600 * 10**9)
    line.put(line.request(0, budget_ms=60_000))
    line.start()
    line.finish()
    assert line.answers() == [(0, Status.EXPIRED, "inference would end after the deadline")]


def test_a_model_that_fails_on_a_frame_fails_that_frame_alone() -> None:
    """The second attempt is made with each frame alone."""
    line = Line(Gated(error=InferenceError("out of range"), poison=(1,)), max_size=3)
    line.put(*(line.request(number) for number in range(3)))
    line.start()
    line.finish()
    assert line.engine.sizes == [3, 1, 1, 1]
    assert line.numbers() == [0, 2]
    assert line.answers() == [(1, Status.FAILED, "poison: out of range")]


def test_an_unavailable_model_is_tried_once() -> None:
    """Its server is down or slow, which is not the fault of any frame."""
    line = Line(Gated(error=UnavailableError("the model's server cannot be reached")), max_size=3)
    line.put(*(line.request(number) for number in range(3)))
    line.start()
    line.finish()
    assert line.engine.sizes == [3]
    assert line.answers() == [(number, Status.FAILED, "the model's server cannot be reached") for number in range(3)]


def test_a_frame_is_tried_at_most_twice() -> None:
    """A third attempt would only delay other frames."""
    line = Line(Gated(error=InferenceError("out of range")))
    line.put(line.request(0))
    line.start()
    line.finish()
    assert line.engine.sizes == [1, 1]
    assert line.answers() == [(0, Status.FAILED, "poison: out of range")]


def test_the_last_waiting_frame_is_processed_by_the_engine_thread() -> None:
    """Waking another thread takes longer than the work; with more frames waiting, the engine must continue."""
    line = Line(Gated())
    line.put(line.request(1))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.put(line.request(2))
    line.finish()
    assert line.numbers() == [1, 2]
    assert line.postprocessor.processed == [2]
