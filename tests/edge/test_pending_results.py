"""The frames that may still get a result."""

import threading

from edge.ledger import PendingResults

WAIT_S = 60.0


def test_the_first_frame_that_may_get_a_result() -> None:
    """Frames end in any order, some without a result."""
    pending = PendingResults()
    assert pending.first() == 0
    for sequence in range(4):
        pending.add(sequence)
    pending.remove(1)
    assert pending.first() == 0
    pending.remove(0)
    assert pending.first() == 2
    for sequence in (2, 3, 3):
        pending.remove(sequence)
    assert pending.first() == 4


def test_a_caller_waits_until_old_frames_have_ended() -> None:
    """The pipeline gets no further ahead of a slow answer than the sinks can hold back."""
    pending = PendingResults()
    for sequence in range(5):
        pending.add(sequence)
    assert pending.wait_until_within(6, 0.0)
    assert not pending.wait_until_within(3, 0.0)

    def end_frames() -> None:
        for sequence in (2, 0, 1):
            pending.remove(sequence)

    ending = threading.Timer(0.01, end_frames)
    ending.start()
    assert pending.wait_until_within(3, WAIT_S)
    ending.join(WAIT_S)
