"""A worker that is stopped answers the frames that it holds; if that takes too long, it leaves them to their vehicles."""

import threading

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.request import Request
from shared import clock
from shared.messages.frame import Status
from tests.support.cloud_requests import make_request
from tests.support.gateway import WAIT_S, open_gateway
from tests.support.tiny_model import frame, model

FRAMES = 8
DRAIN_S = 2.0  # The worker waits as long for its decoders, and for the engine after that.
POLL_S = 0.05


def test_no_decoder_waits_for_a_batcher_that_is_closed() -> None:
    """The engine is slow and does not hang: the worker ends in order, and only frames without a slot stay unanswered."""
    entered, paused, others = threading.Event(), threading.Event(), set(threading.enumerate())

    def infer() -> None:
        """Takes until the decoders of this worker have ended."""
        entered.set()
        threads = [each for each in threading.enumerate() if each.name.startswith("decoder-") and each not in others]
        for _ in range(round(WAIT_S / POLL_S)):
            if not any(thread.is_alive() for thread in threads):
                return
            paused.wait(POLL_S)

    with open_gateway(model(infer), drain_s=DRAIN_S) as worker:
        replies = [
            worker.node.submission.put(frame(number), received_ns=clock.now_ns(), max_reply_bytes=1 << 20)
            for number in range(FRAMES)
        ]
        assert entered.wait(WAIT_S)
    answered = [reply.result() for reply in replies if reply.done() and not reply.cancelled()]
    assert 0 < len(answered) < FRAMES
    assert {answer.message.status for answer in answered} == {Status.ANSWERED}


def test_a_frame_is_chosen_again_when_its_batcher_closes() -> None:
    """Its model may have been replaced between two looks; without other traffic nothing else would wake the decoder."""
    admission, refused = Admission(), threading.Event()
    replier = Replier("w", "cloud/w/s9")
    batcher = Batcher(model(), replier, admission, Postprocessor(replier))
    chosen: list[object] = []

    def choose(_: Request) -> str | None:
        if not refused.is_set():
            refused.set()
            return None
        return "next version"

    taker = threading.Thread(target=lambda: chosen.append(admission.take(choose)))
    admission.offer(make_request())
    taker.start()
    assert refused.wait(WAIT_S)
    batcher.close()
    taker.join(WAIT_S)
    assert not taker.is_alive()
    assert [entry[1] for entry in chosen if isinstance(entry, tuple)] == ["next version"]


def test_abandoned_frames_end_the_wait_of_every_decoder() -> None:
    """Frames without a deadline would keep them for ever."""
    admission, waited = Admission(), threading.Semaphore(0)

    def choose(_: Request) -> None:
        waited.release()

    takers = [threading.Thread(target=admission.take, args=(choose,)) for _ in range(3)]
    for _ in range(4):
        admission.offer(make_request())
    for taker in takers:
        taker.start()
        assert waited.acquire(timeout=WAIT_S)
    admission.close()
    assert admission.abandon() == 4
    for taker in takers:
        taker.join(WAIT_S)
        assert not taker.is_alive()
    assert (admission.depth, admission.depths()) == (0, {})
