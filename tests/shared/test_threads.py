import os
import queue
import subprocess
import sys
import threading

import pytest

from shared.errors import SkylaneError
from shared.threads import BoundedQueue, ThreadGroup, is_thread_limit, lower_priority

WAIT_S = 60.0


def test_an_exception_in_one_thread_ends_the_others_and_is_raised_by_join() -> None:
    """A thread that dies unnoticed leaves a node that looks alive but does not work."""
    stop = threading.Event()
    group = ThreadGroup(stop.set)
    group.start("waiting", lambda: _wait(stop))
    group.start("failing", _fail)
    with pytest.raises(ValueError, match="bug"):
        group.join(WAIT_S)
    assert stop.is_set()


def test_only_the_first_fault_is_raised() -> None:
    """Later ones are usually its consequences."""
    calls: list[None] = []
    group = ThreadGroup(lambda: calls.append(None))
    group.fault(ValueError("first"))
    group.fault(KeyError("second"))
    with pytest.raises(ValueError, match="first"):
        group.check()
    assert len(calls) == 1


def test_a_thread_that_does_not_end_is_reported_by_name() -> None:
    """The alternative would be to wait forever."""
    stop = threading.Event()
    group = ThreadGroup(stop.set)
    group.start("stubborn", lambda: _wait(stop))
    with pytest.raises(SkylaneError, match="thread stubborn did not end"):
        group.join(0.01)
    stop.set()
    group.join(WAIT_S)


def test_a_fault_has_priority_over_a_thread_that_does_not_end() -> None:
    """The fault is the cause, and the thread a symptom."""
    stop = threading.Event()
    group = ThreadGroup(lambda: None)
    group.start("stubborn", lambda: _wait(stop))
    group.fault(ValueError("cause"))
    with pytest.raises(ValueError, match="cause"):
        group.join(0.01)
    stop.set()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BlockingIOError("Resource temporarily unavailable"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("bug"), False),
        (ValueError("can't start new thread"), False),
    ],
)
def test_only_a_limit_of_the_system_counts_as_one(error: Exception, *, expected: bool) -> None:
    """The user is asked to raise the limit; any other error is a bug with its traceback."""
    assert is_thread_limit(error) == expected


def test_a_queue_keeps_the_order_until_it_is_closed() -> None:
    """Frames of a camera stay in order."""
    items: BoundedQueue[int] = BoundedQueue(2)
    received: list[int] = []

    def read() -> None:
        with items.reader() as get:
            while (item := get()) is not None:
                received.append(item)

    group = ThreadGroup(lambda: None)
    group.start("reader", read)
    for item in range(1, 50):
        items.put(item)
    items.close()
    group.join(WAIT_S)
    assert received == list(range(1, 50))


def test_a_writer_does_not_wait_for_a_dead_reader() -> None:
    """Otherwise a bug in the engine's thread would block the node, which should end with its traceback."""
    items: BoundedQueue[int] = BoundedQueue(1)

    def read() -> None:
        with items.reader() as get:
            get()
            raise ValueError("bug")

    group = ThreadGroup(lambda: None)
    group.start("reader", read)
    done = threading.Event()

    def write() -> None:
        for item in range(10):
            items.put(item)
        items.close()
        done.set()

    group.start("writer", write)
    assert done.wait(WAIT_S)
    with pytest.raises(ValueError, match="bug"):
        group.join(WAIT_S)


def test_offer_does_not_wait_for_a_full_queue() -> None:
    """The network thread must not wait."""
    items: BoundedQueue[int] = BoundedQueue(1)
    assert items.offer(1)
    assert not items.offer(2)
    with items.reader() as get:
        assert get() == 1
        with pytest.raises(queue.Empty):
            get(timeout=0.0)


def test_lower_priority_affects_only_the_calling_thread() -> None:
    """Threads with measured work keep their priority."""
    group = ThreadGroup(lambda: None)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    group.start("sinks", lower_priority)
    group.join(WAIT_S)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_lower_priority_leaves_a_thread_that_has_a_lower_one() -> None:
    """Without the rights of root, raising it would be an error."""
    found: list[int] = []

    def lower_twice() -> None:
        lower_priority()
        lower_priority(niceness=5)
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    group = ThreadGroup(lambda: None)
    group.start("presenter", lower_twice)
    group.join(WAIT_S)
    assert found == [19]


def _fail() -> None:
    raise ValueError("bug")


def _wait(stop: threading.Event) -> None:
    stop.wait(WAIT_S)


@pytest.mark.parametrize(("ending", "code"), [("group.abandon()", 7), ("", 0)])
def test_an_abandoned_thread_ends_with_the_process(ending: str, code: int) -> None:
    """A library that hangs must neither delay the end of a command nor change its exit code; output is complete."""
    program = (
        "import threading\n"
        "from shared.threads import ThreadGroup, end_process_if_threads_hang\n"
        "group = ThreadGroup(lambda: None)\n"
        "group.start('hangs', threading.Event().wait)\n"
        f"{ending}\n"
        "print('summary', end='')\n"
        "end_process_if_threads_hang(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "summary")
