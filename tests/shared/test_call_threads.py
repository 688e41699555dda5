import os
import queue
import threading
import time
from functools import partial

import pytest

from shared.call_threads import CallThreads, afterwards

WAIT_S = 10.0


def test_a_call_is_told_of_as_it_ended() -> None:
    """A server that hands a call in has to learn when its place is free, and of what."""
    threads = CallThreads("call", 2)
    assert threads.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(WAIT_S)
    threads.close()


def test_a_call_that_was_cancelled_before_its_turn_is_not_made() -> None:
    """Nobody waits for it."""
    threads = CallThreads("call", 1)
    gate = threading.Event()
    first = threads.submit(gate.wait, WAIT_S)
    second = threads.submit(pytest.fail, "was made")
    third = threads.submit(threading.current_thread)
    assert second.cancel()
    gate.set()
    assert first.result(WAIT_S)
    assert third.result(WAIT_S).name == "call-0"
    threads.close()


def test_as_many_calls_are_made_at_a_time_as_there_are_threads() -> None:
    """Each waits for the other; more would wait for a thread."""
    threads = CallThreads("call", 2)
    both = threading.Barrier(2)
    calls = [threads.submit(both.wait, WAIT_S) for _ in range(4)]
    assert sorted(call.result(WAIT_S) for call in calls) == [0, 0, 1, 1]
    threads.close()


def test_the_thread_that_was_the_last_to_be_done_makes_the_next_call() -> None:
    """Its memory is at hand; that of the others need never be touched again."""
    threads = CallThreads("call", 3)
    gates = [threading.Event() for _ in range(3)]
    names: list[str] = []

    def call(gate: threading.Event) -> None:
        assert gate.wait(WAIT_S)
        afterwards(lambda: names.append(threading.current_thread().name))

    for gate in gates:
        threads.run(partial(call, gate))
    for done, gate in enumerate((gates[1], gates[2], gates[0]), start=1):
        gate.set()
        until_s = time.monotonic() + WAIT_S
        while len(threads._idle) < done and time.monotonic() < until_s:
            os.sched_yield()
    assert names == ["call-1", "call-2", "call-0"]
    assert [threads.submit(threading.current_thread).result(WAIT_S).name for _ in range(3)] == ["call-0"] * 3
    threads.close()


def test_a_call_waits_for_a_thread_to_take_the_place_of_one_that_ended() -> None:
    """It was handed in before, and nobody hands it in again."""
    threads = CallThreads("call", 1)
    gate = threading.Event()
    heard: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    before, threading.excepthook = threading.excepthook, heard.put
    try:
        threads.run(lambda: [gate.wait(WAIT_S)].remove(False))  # Of what is True.
        second = threads.submit(divmod, 7, 2)
        gate.set()
        assert second.result(WAIT_S) == (3, 1)
        assert heard.get(timeout=WAIT_S).exc_type is ValueError
    finally:
        threading.excepthook = before
    threads.close()


def test_a_call_that_hangs_holds_up_neither_a_close_nor_the_end_of_python() -> None:
    """Its thread is left behind."""
    threads = CallThreads("call", 1)
    begun, gate = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return gate.wait()

    hung = threads.submit(hang)
    assert begun.wait(WAIT_S)
    threads.close()
    assert not hung.done()
    gate.set()
    assert hung.result(WAIT_S)


def test_what_nobody_waits_for_is_done_behind_the_answer() -> None:
    """The caller has it by then, and the next call finds it done."""
    threads = CallThreads("call", 1)
    done: list[str] = []
    gate = threading.Event()

    def call() -> tuple[str, ...]:
        afterwards(lambda: done.append("waited" if gate.wait(WAIT_S) else "gave up"))
        return tuple(done)

    assert threads.submit(call).result(WAIT_S) == ()
    gate.set()
    assert threads.submit(tuple, done).result(WAIT_S) == ("waited",)
    threads.close()


def test_what_is_left_to_do_by_a_call_that_failed_is_done_too() -> None:
    """A count that was lost would never come right again."""
    threads = CallThreads("call", 1)
    done: list[str] = []

    def call() -> None:
        afterwards(lambda: done.append("counted"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.submit(call).result(WAIT_S)
    assert threads.submit(tuple, done).result(WAIT_S) == ("counted",)
    threads.close()


def test_a_thread_that_makes_no_call_leaves_nothing_for_later() -> None:
    """Nor does what is done behind a call: there is nothing behind it."""
    done: list[str] = []
    afterwards(lambda: done.append("at once"))
    assert done == ["at once"]
    threads = CallThreads("call", 1)
    threads.submit(afterwards, lambda: afterwards(lambda: done.append("at its turn"))).result(WAIT_S)
    assert threads.submit(tuple, done).result(WAIT_S) == ("at once", "at its turn")
    threads.close()


def test_a_call_that_ends_its_thread_ends_no_other() -> None:
    """Whose bug it was hears of it; the calls to come are made all the same."""
    threads = CallThreads("call", 1)
    heard: queue.SimpleQueue[threading.ExceptHookArgs] = queue.SimpleQueue()
    before, threading.excepthook = threading.excepthook, heard.put
    try:
        threads.run(lambda: [].remove(0))  # type: ignore[arg-type]  # It is in no list.
        assert heard.get(timeout=WAIT_S).exc_type is ValueError
    finally:
        threading.excepthook = before
    assert threads.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    threads.close()


def test_what_goes_wrong_behind_a_call_is_told_and_ends_no_thread() -> None:
    """Its caller is answered already, and the calls to come need the thread."""
    faults: list[BaseException] = []
    threads = CallThreads("call", 1, faults.append)
    done: list[str] = []

    def call() -> str:
        afterwards(lambda: done.remove("nothing"))
        afterwards(lambda: done.append("the next"))
        return threading.current_thread().name

    assert threads.submit(call).result(WAIT_S) == "call-0"
    assert threads.submit(lambda: (threading.current_thread().name, *done)).result(WAIT_S) == ("call-0", "the next")
    assert [type(fault) for fault in faults] == [ValueError]
    threads.close()
