from cloud.engines.engine import InferenceError, UnavailableError
from cloud.serving.latency_estimator import Estimate
from cloud.serving.request import Request
from shared import clock
from shared.messages.frame import Status
from shared.stages import Stage
from tests.support.batching import WAIT_S, Gated, Line


def test_what_waits_is_inferred_together_and_each_gets_its_own_mask() -> None:
    """While the engine is busy a batch gathers; a mask that went to another frame would be the worst fault of all."""
    line = Line(Gated(), max_size=4, decoders=6)
    line.put(line.request(0))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.put(*(line.request(number) for number in range(1, 7)))
    line.finish()
    assert line.numbers() == list(range(7))
    assert line.engine.sizes == [1, 4, 2]
    assert [request.batch_size for request, _ in line.done] == [1, 4, 4, 4, 4, 2, 2]


def test_an_unexpected_error_of_the_engine_leaves_the_place_free() -> None:
    """The frame is answered `failed`, and the next one is inferred."""
    line = Line(Gated(error=ValueError("a bug"), poison=(0,)))
    line.engine.gate.set()
    line.put(line.request(0))
    line.start()
    line.put(line.request(1))
    line.finish()
    assert line.numbers() == [1]


def test_no_more_frames_wait_decoded_than_a_batch_takes() -> None:
    """What waits here has left the fair queue; a place that gets free wakes the queue."""
    line = Line(Gated(), max_size=2)
    assert [line.batcher.reserve() for _ in range(3)] == [True, True, False]
    line.batcher.release()
    assert line.batcher.reserve()
    assert not line.batcher.reserve()


def test_the_stamps_of_a_batch_are_those_of_its_inference() -> None:
    """Not of the handing on: the last frame of a batch must not look slower than the first."""
    line = Line(Gated(), max_size=4)
    line.put(*(line.request(number) for number in range(4)))
    line.start()
    line.finish()
    assert line.engine.sizes == [4]
    batched = [request.times[Stage.BATCHED] for request, _ in line.done]
    inferred = [request.times[Stage.INFERRED] for request, _ in line.done]
    assert max(batched) <= min(inferred)
    assert all(request.picture is None for request, _ in line.done)


def test_a_batch_baked_into_the_graph_is_the_batch() -> None:
    """A manifest that promises more must not make the log say more."""
    line = Line(Gated(batch_size=1), max_size=4, decoders=2)
    line.put(line.request(0), line.request(1))
    line.start()
    line.finish()
    assert line.engine.sizes == [1, 1]
    assert [request.batch_size for request, _ in line.done] == [1, 1]


def test_a_batch_waits_for_what_is_being_decoded() -> None:
    """Throughput for latency, by choice."""
    line = Line(Gated(), max_size=2, max_wait_ms=WAIT_S * 1000)
    line.engine.gate.set()
    line.put(line.request(0))
    assert line.batcher.reserve()
    line.start()
    line.batcher.put(line.request(1))
    line.finish()
    assert line.engine.sizes == [2]


def test_a_wait_in_vain_is_not_repeated() -> None:
    """A lone vehicle with one frame in flight would pay for it with every frame."""
    line = Line(Gated(), max_size=2, max_wait_ms=1)
    line.engine.gate.set()
    line.put(line.request(0))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.engine.entered.clear()
    line.batcher._max_wait_s = 3600.0
    line.put(line.request(1))
    assert line.engine.entered.wait(WAIT_S)
    line.finish()
    assert line.engine.sizes == [1, 1]


def test_a_batch_waits_no_longer_than_the_budget_of_any_frame_in_it() -> None:
    """Company is never worth an answer."""
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


def test_an_end_within_the_wait_infers_what_is_there() -> None:
    """A drain must not wait for frames that cannot come."""
    line = Line(Gated(), max_size=8, max_wait_ms=3_600_000)
    line.put(line.request(0))
    assert line.batcher.reserve()
    line.start()
    line.batcher.release()
    line.finish()
    assert line.numbers() == [0]


def test_a_close_waits_for_the_frames_that_are_being_decoded() -> None:
    """A version that is swapped for another loses none; nobody gets a place on it any more."""
    line = Line(Gated())
    assert line.batcher.reserve()
    line.engine.gate.set()
    line.start()
    line.batcher.close()
    assert not line.batcher.reserve()
    line.batcher.put(line.request(0))
    line.threads.join(WAIT_S)
    assert line.numbers() == [0]


def test_frames_whose_budget_is_used_up_are_not_inferred() -> None:
    """The others of the batch are."""
    line = Line(Gated(), max_size=3)
    long_ago_ns = clock.now_ns() - 3_600 * 10**9
    line.put(
        *(line.request(number, 3_500_000, received_ns) for number, received_ns in enumerate((None, long_ago_ns, None)))
    )
    line.start()
    line.finish()
    assert line.numbers() == [0, 2]
    assert line.engine.sizes == [2]
    assert line.answers() == [(1, Status.EXPIRED, "its budget ended before inference")]


def test_frames_that_would_be_inferred_too_late_are_not_inferred() -> None:
    """The engine's time goes to frames that can still be answered."""
    line = Line(Gated(), max_size=2)
    line.batcher._inference.add(1, 3_600 * 10**9)
    assert line.batcher.expected_latency_ns >= 3_600 * 10**9
    line.put(line.request(0, 60_000), line.request(1))
    line.start()
    line.finish()
    assert line.numbers() == [1]
    assert line.answers() == [(0, Status.EXPIRED, "its inference would end after its budget")]


def test_a_batch_is_cut_where_more_would_make_a_frame_late() -> None:
    """The frames of one vehicle must not wait for those of another past their budget; fewer then leave the fair queue."""
    line = Line(Gated(), max_size=4)
    line.batcher._inference.add(1, 1_000 * 10**9)
    line.batcher._inference.add(4, 360_000 * 10**9)
    line.put(*(line.request(number, budget_ms=2_500_000) for number in range(4)))
    line.engine.gate.set()
    line.start()
    line.finish()
    assert line.numbers() == [0, 1, 2, 3]
    assert line.engine.sizes == [2, 2]


def test_after_a_cut_fewer_frames_wait_decoded() -> None:
    """What waits decoded is served as it came, whosever it is: a greedy vehicle's frames would stand before all others."""
    line = Line(Gated(), max_size=4)
    line.batcher._inference.add(1, 1_000 * 10**9)
    line.batcher._inference.add(4, 360_000 * 10**9)
    line.put(*(line.request(number, budget_ms=1_500_000) for number in range(4)))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    assert not line.batcher.reserve()  # Three wait where one batch of one frame was cut.
    line.finish()
    assert line.engine.sizes[0] == 1


def test_the_time_from_inference_to_answer_counts() -> None:
    """A result that is ready when its budget has ended was inferred in vain."""
    finishing = Estimate()
    finishing.add(3_600 * 10**9)
    line = Line(Gated(), finishing=finishing)
    line.put(line.request(0, budget_ms=60_000))
    line.start()
    line.finish()
    assert line.answers() == [(0, Status.EXPIRED, "its inference would end after its budget")]


def test_a_model_that_fails_on_a_frame_fails_that_frame_alone() -> None:
    """On its second try, alone; those beside it in the batch are answered."""
    line = Line(Gated(error=InferenceError("out of range"), poison=(1,)), max_size=3)
    line.put(*(line.request(number) for number in range(3)))
    line.start()
    line.finish()
    assert line.engine.sizes == [3, 1, 1, 1]
    assert line.numbers() == [0, 2]
    assert line.answers() == [(1, Status.FAILED, "poison: out of range")]


def test_a_model_that_cannot_be_asked_is_asked_once() -> None:
    """Its server is away or slow: each frame alone would wait for it once more, and none of them is to blame."""
    line = Line(Gated(error=UnavailableError("the model's server cannot be reached")), max_size=3)
    line.put(*(line.request(number) for number in range(3)))
    line.start()
    line.finish()
    assert line.engine.sizes == [3]
    assert line.answers() == [(number, Status.FAILED, "the model's server cannot be reached") for number in range(3)]


def test_a_frame_is_tried_twice_at_most() -> None:
    """What fails twice would fail for ever, at the cost of all others."""
    line = Line(Gated(error=InferenceError("out of range")))
    line.put(line.request(0))
    line.start()
    line.finish()
    assert line.engine.sizes == [1, 1]
    assert line.answers() == [(0, Status.FAILED, "poison: out of range")]


def test_a_frame_behind_which_none_waits_is_finished_by_the_engines_thread() -> None:
    """To wake another thread takes longer than the work; with frames behind it, the engine must go on."""
    finished: list[Request] = []
    line = Line(Gated(), finish=lambda request, _: finished.append(request))
    line.put(line.request(1))
    line.start()
    assert line.engine.entered.wait(WAIT_S)
    line.put(line.request(2))
    line.finish()
    assert line.numbers() == [1]
    assert [request.id and request.id.sequence for request in finished] == [2]
