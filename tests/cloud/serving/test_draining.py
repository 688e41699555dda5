"""A worker that is stopped: it answers what it holds, or refuses it if that takes too long."""

import threading
from collections import Counter
from concurrent.futures import Future

from cloud.gateway.submission import Answered
from shared import clock
from shared.messages.frame import Status
from tests.support.gateway import WAIT_S, open_gateway
from tests.support.tiny_model import frame, model

FRAMES = 8
DRAIN_S = 5.0  # The worker waits as long for its decoders, and for the engine after that.


def test_frames_that_wait_when_the_drain_takes_too_long_are_refused_and_the_worker_ends() -> None:
    """The engine is slow and does not hang: no decoder may wait for a slot that its batcher will never have again."""
    entered, refused = threading.Event(), threading.Event()
    replies: list[Future[Answered]] = []

    def infer() -> None:
        """Takes until the first waiting frame is refused."""
        entered.set()
        assert refused.wait(WAIT_S)

    def note(reply: Future[Answered]) -> None:
        if reply.result().message.status is Status.OVERLOADED:
            refused.set()

    with open_gateway(model(infer), drain_s=DRAIN_S) as worker:
        for number in range(FRAMES):
            reply = worker.node.submission.put(frame(number), received_ns=clock.now_ns(), max_reply_bytes=1 << 20)
            reply.add_done_callback(note)
            replies.append(reply)
        assert entered.wait(WAIT_S)
    statuses = Counter(reply.result(timeout=0).message.status for reply in replies)
    assert set(statuses) == {Status.ANSWERED, Status.OVERLOADED}
    assert statuses.total() == FRAMES
