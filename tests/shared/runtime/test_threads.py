import os
import queue
import threading

import pytest

from shared.errors import SkylaneError
from shared.runtime.threads import BoundedQueue, ThreadGroup, lower_priority

WAIT_S = 60.0


def test_a_bug_in_one_thread_ends_the_others_and_is_raised_where_it_is_seen() -> None:
    """A thread that dies unseen leaves a node that looks alive and answers nobody."""
    stop = threading.Event()
    group = ThreadGroup(stop.set)
    group.start("waiting", lambda: _wait(stop))
    group.start("failing", _fail)
    with pytest.raises(ValueError, match="bug"):
        group.join(WAIT_S)
    assert stop.is_set()


def test_the_first_fault_is_the_one_that_is_told() -> None:
    """What follows a bug is mostly its consequence."""
    calls: list[None] = []
    group = ThreadGroup(lambda: calls.append(None))
    group.fault(ValueError("first"))
    group.fault(KeyError("second"))
    with pytest.raises(ValueError, match="first"):
        group.check()
    assert len(calls) == 1


def test_a_thread_that_does_not_end_is_named() -> None:
    """Silence for ever would be the other choice."""
    stop = threading.Event()
    group = ThreadGroup(stop.set)
    group.start("stubborn", lambda: _wait(stop))
    with pytest.raises(SkylaneError, match="thread stubborn did not end"):
        group.join(0.01)
    stop.set()
    group.join(WAIT_S)


def test_a_fault_speaks_before_the_thread_that_it_keeps_waiting() -> None:
    """The cause helps; the symptom does not."""
    stop = threading.Event()
    group = ThreadGroup(lambda: None)
    group.start("stubborn", lambda: _wait(stop))
    group.fault(ValueError("cause"))
    with pytest.raises(ValueError, match="cause"):
        group.join(0.01)
    stop.set()


def test_a_handover_hands_on_in_order_until_it_is_closed() -> None:
    """Frames of a camera stay in order on their way through a node."""
    handover: BoundedQueue[int] = BoundedQueue(2)
    got: list[int] = []

    def read() -> None:
        with handover.reader() as get:
            while (item := get()) is not None:
                got.append(item)

    group = ThreadGroup(lambda: None)
    group.start("reader", read)
    for item in range(1, 50):
        handover.put(item)
    handover.close()
    group.join(WAIT_S)
    assert got == list(range(1, 50))


def test_a_handover_whose_reader_died_keeps_nobody_waiting() -> None:
    """Otherwise one bug in the engine's thread would hang the node that ought to end with its traceback."""
    handover: BoundedQueue[int] = BoundedQueue(1)

    def read() -> None:
        with handover.reader() as get:
            get()
            raise ValueError("bug")

    group = ThreadGroup(lambda: None)
    group.start("reader", read)
    done = threading.Event()

    def write() -> None:
        for item in range(10):
            handover.put(item)
        handover.close()
        done.set()

    group.start("writer", write)
    assert done.wait(WAIT_S)
    with pytest.raises(ValueError, match="bug"):
        group.join(WAIT_S)


def test_a_full_handover_refuses_an_offer_at_once() -> None:
    """The network thread must never wait."""
    handover: BoundedQueue[int] = BoundedQueue(1)
    assert handover.offer(1)
    assert not handover.offer(2)
    with handover.reader() as get:
        assert get() == 1
        with pytest.raises(queue.Empty):
            get(timeout=0.0)


def test_a_thread_steps_back_without_taking_the_others_along() -> None:
    """What is measured keeps its priority."""
    group = ThreadGroup(lambda: None)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    group.start("sinks", lower_priority)
    group.join(WAIT_S)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def _fail() -> None:
    raise ValueError("bug")


def _wait(stop: threading.Event) -> None:
    stop.wait(WAIT_S)
