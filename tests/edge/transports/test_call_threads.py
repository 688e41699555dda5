"""Threads for blocking calls."""

import logging
import queue
import threading

import pytest

from edge.transports.call_threads import CallThreads

WAIT_S = 60.0


def test_calls_run_concurrently_up_to_the_limit() -> None:
    """Two calls at a time wait for each other; the others wait for a thread."""
    threads = CallThreads("call", 2)
    both = threading.Barrier(2)
    names: queue.SimpleQueue[str] = queue.SimpleQueue()

    def call() -> None:
        both.wait(WAIT_S)
        names.put(threading.current_thread().name)

    for _ in range(4):
        threads.run(call)
    assert {names.get(timeout=WAIT_S) for _ in range(4)} == {"call-0", "call-1"}
    threads.close()


def test_idle_threads_run_later_calls() -> None:
    """A call that follows another one rarely needs a new thread."""
    threads = CallThreads("call", 100)
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    used = set()
    for _ in range(100):
        threads.run(lambda: names.put(threading.current_thread().name))
        used.add(names.get(timeout=WAIT_S))
        threading.Event().wait(0.002)  # The thread becomes idle.
    assert len(used) < 50
    threads.close()


def test_an_exception_in_a_call_does_not_affect_later_calls(caplog: pytest.LogCaptureFixture) -> None:
    """The traceback is logged."""
    threads = CallThreads("call", 1)
    done = threading.Event()
    with caplog.at_level(logging.ERROR, "skylane.edge"):
        threads.run(lambda: [].remove(0))  # type: ignore[arg-type]
        threads.run(done.set)
        assert done.wait(WAIT_S)
    assert "ValueError" in caplog.text
    threads.close()


def test_close_discards_queued_calls_and_does_not_wait_for_hanging_ones() -> None:
    """A server that hangs must not keep the vehicle from ending."""
    threads = CallThreads("call", 1)
    started, gate, ran = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        gate.wait()

    threads.run(hang)
    threads.run(ran.set)
    assert started.wait(WAIT_S)
    threads.close()
    threads.run(ran.set)
    (hung,) = (thread for thread in threading.enumerate() if thread.name == "call-0")
    gate.set()
    hung.join(WAIT_S)
    assert not hung.is_alive()
    assert not ran.is_set()
