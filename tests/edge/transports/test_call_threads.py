"""Threads for calls that block."""

import logging
import queue
import threading

import pytest

from edge.transports.call_threads import CallThreads

WAIT_S = 60.0


def test_as_many_calls_run_at_a_time_as_there_are_threads() -> None:
    """Each pair waits for the other; more would wait for a thread."""
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


def test_an_idle_thread_runs_the_next_call() -> None:
    """Threads are not started for every call."""
    threads = CallThreads("call", 8)
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    for _ in range(5):
        threads.run(lambda: names.put(threading.current_thread().name))
        assert names.get(timeout=WAIT_S) == "call-0"
        while not threads._idle._value:
            threading.Event().wait(0.001)
    threads.close()


def test_a_call_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The log has its traceback."""
    threads = CallThreads("call", 1)
    done = threading.Event()
    with caplog.at_level(logging.ERROR, "skylane.edge"):
        threads.run(lambda: [].remove(0))  # type: ignore[arg-type]  # It is in no list.
        threads.run(done.set)
        assert done.wait(WAIT_S)
    assert "ValueError" in caplog.text
    threads.close()


def test_a_close_waits_for_no_call_and_forgets_those_that_wait() -> None:
    """A server that hangs keeps no vehicle from ending."""
    threads = CallThreads("call", 1)
    begun, gate, made = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait()

    threads.run(hang)
    threads.run(made.set)
    assert begun.wait(WAIT_S)
    threads.close()
    threads.run(made.set)
    (hung,) = (thread for thread in threading.enumerate() if thread.name == "call-0")
    gate.set()
    hung.join(WAIT_S)
    assert not hung.is_alive()
    assert not made.is_set()
