import threading

from cloud.admission import Admission
from cloud.request import Request
from shared.messages import MaskMessage
from shared.stages import Stage

WAIT_S = 10.0


def _request(size: int = 10) -> Request:
    def answer(message: MaskMessage) -> None:
        raise AssertionError(message)

    return Request(bytes(size), "car", "left", "tiny", answer, {Stage.RECEIVED: 0}, largest_answer=1)


def test_frames_come_out_as_they_came_in() -> None:
    """First come, first served."""
    admission = Admission()
    requests = [_request() for _ in range(5)]
    assert all(admission.offer(request) for request in requests)
    assert admission.depth == 5
    assert [admission.take() for _ in requests] == requests


def test_more_frames_than_allowed_are_refused_at_once() -> None:
    """The network thread must never wait, and overload must cost an answer and not the memory."""
    admission = Admission(max_frames=2)
    assert admission.offer(_request())
    assert admission.offer(_request())
    assert not admission.offer(_request())
    admission.take()
    assert admission.offer(_request())


def test_more_bytes_than_allowed_are_refused() -> None:
    """Few large frames fill a memory as well as many small ones; room that is given back can be taken again."""
    admission = Admission(max_frames=100, max_bytes=100)
    assert admission.offer(_request(60))
    assert not admission.offer(_request(60))
    assert admission.offer(_request(40))
    admission.take()
    assert admission.offer(_request(60))
    assert not admission.offer(_request(1))


def test_bytes_are_counted_even_where_the_payload_is_let_go() -> None:
    """Whoever takes a frame empties it; the room must be given back all the same."""
    admission = Admission(max_bytes=100)
    for _ in range(50):
        assert admission.offer(_request(90))
        taken = admission.take()
        assert taken is not None
        taken.payload = b""


def test_a_closed_queue_lets_nobody_in_and_hands_out_what_it_has() -> None:
    """A worker that stops still answers what it admitted."""
    admission = Admission()
    request = _request()
    admission.offer(request)
    admission.close()
    assert not admission.offer(_request())
    assert admission.take() is request
    assert admission.take() is None


def test_closing_wakes_everyone_who_waits() -> None:
    """Or a worker with two decoders would never end."""
    admission = Admission()
    found: list[Request | None] = []
    threads = [threading.Thread(target=lambda: found.append(admission.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    admission.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [None, None, None]
