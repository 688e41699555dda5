import re
import threading
from dataclasses import dataclass, field

import pytest

from cloud.serving.admission import STRIKES, Admission, CircuitBreaker
from cloud.serving.replies import Replier
from cloud.serving.request import Refusal, Request
from cloud.serving.served_models import InFlight, ServedModels
from cloud.serving.submission import Submission
from shared import clock
from shared.clock import Deadline
from shared.messages.frame import FrameHeader, ResultMessage, Status
from shared.messages.topics import FrameId
from shared.stages import Stage
from tests.support.cloud_requests import make_request

WAIT_S = 60.0


@dataclass
class Rig:
    """A submission without decoders, whose requests are sent by a client that records the replies."""

    admission: Admission
    circuit_breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    replies: list[ResultMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.in_flight = InFlight()
        self.replier = Replier("w", "cloud/w/s9")
        self.submission = Submission(
            self.admission, self.circuit_breaker, self.in_flight, self.replier, ServedModels(), session="s9"
        )

    def submit(self, sequence: int = 0, vehicle: str = "car", budget_ms: int | None = None) -> None:
        """Submits a request for the model `tiny`."""
        self.submission.submit(
            make_request(
                payload=b"payload",
                vehicle=vehicle,
                reply=self.replies.append,
                times={Stage.RECEIVED: clock.now_ns() - 1_000_000},
                correlation=FrameId(vehicle, "left", "s1", sequence),
                header=FrameHeader(deadline=Deadline.after_ms(budget_ms)),
                refuse=self._refuse,
            )
        )

    def take(self) -> Request:
        """Takes the next request out of the queue, as a decoder does."""
        taken = self.admission.take(lambda _: True)
        assert taken is not None
        return taken[0]

    def refusals(self) -> list[tuple[str, int, Status, str]]:
        """Vehicle, sequence number, status and reason of each reply."""
        return [(reply.id.vehicle, reply.id.sequence, reply.status, reply.reason) for reply in self.replies]

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        self.replier.refuse(request, *refusal)


def _raise(_: ResultMessage) -> None:
    raise ConnectionError


def test_a_request_is_admitted() -> None:
    """Without an obstacle, the request waits in the queue and nothing is sent."""
    rig = Rig(Admission())
    rig.submit(7, budget_ms=60_000)
    assert rig.admission.depth == 1
    assert not rig.replies


def test_a_blocked_vehicle_is_rejected() -> None:
    """Its frames do not enter the queue, and the reply has the reason; other vehicles are served."""
    rig = Rig(Admission())
    for _ in range(STRIKES):
        rig.circuit_breaker.strike("car")
    rig.submit(1)
    rig.submit(2, vehicle="truck")
    ((vehicle, sequence, status, reason),) = rig.refusals()
    assert (vehicle, sequence, status) == ("car", 1, Status.REJECTED)
    assert re.fullmatch(r"vehicle car is blocked for \d s: 3 of its frames ended the engine's process", reason)
    assert rig.admission.depth == 1


def test_a_request_after_its_deadline_is_refused_at_once() -> None:
    """A frame that spent its whole budget on the way takes no place in the queue."""
    rig = Rig(Admission())
    rig.submit(1, budget_ms=0)
    assert rig.refusals() == [("car", 1, Status.EXPIRED, "the deadline passed while the frame waited")]
    assert rig.admission.depth == 0


def test_a_full_queue_refuses_the_frame_that_it_drops() -> None:
    """The new frame of the same vehicle is dropped, but another vehicle displaces a frame that already waits."""
    rig = Rig(Admission(max_frames=2))
    for sequence in range(3):
        rig.submit(sequence)
    rig.submit(0, vehicle="truck")
    overloaded = (Status.OVERLOADED, "2 frames are waiting")
    assert rig.refusals() == [("car", 2, *overloaded), ("car", 1, *overloaded)]


def test_a_full_queue_drops_expired_frames_first() -> None:
    """The client of such a frame learns that its deadline passed, not that the worker was busy."""
    rig = Rig(Admission(max_frames=1))
    rig.submit(0, budget_ms=50)
    assert not threading.Event().wait(0.1)
    rig.submit(1)
    assert rig.refusals() == [("car", 0, Status.EXPIRED, "the deadline passed while the frame waited")]


@pytest.mark.parametrize("refuses_second", [True, False])
def test_a_model_is_idle_when_all_its_requests_have_replies(*, refuses_second: bool) -> None:
    """It can then be unloaded; a refusal counts as a reply, whether at submission or later."""
    rig = Rig(Admission(max_frames=1 if refuses_second else 2))
    assert rig.in_flight.wait_until_idle("tiny", 0.01)
    rig.submit(0)
    rig.submit(1)
    assert len(rig.replies) == int(refuses_second)
    assert not rig.in_flight.wait_until_idle("tiny", 0.01)
    while rig.admission.depth:
        request = rig.take()
        assert not rig.in_flight.wait_until_idle("tiny", 0.01)
        rig.replier.refuse(request, Status.FAILED, "test")
    assert rig.in_flight.wait_until_idle("tiny", 0.01)


def test_a_reply_that_cannot_be_sent_still_ends_the_request() -> None:
    """A closed connection must not delay the unloading of the model."""
    rig = Rig(Admission())
    rig.submit()
    request = rig.take()
    request.reply = _raise
    rig.replier.refuse(request, Status.FAILED, "test")
    assert rig.replier.errors.counts == {"reply": 1}
    assert rig.in_flight.wait_until_idle("tiny", 0.01)
