"""Who takes a batch through the engine: a thread of the engine's own, one of several, or a caller's."""

import threading

import numpy as np
import pytest

from cloud.engines.engine import Outputs
from cloud.model import InstancesError
from shared import clock
from tests.cloud.batching_rig import WAIT_S, Gated, Line
from tests.cloud.channel import Engine, model

_SECOND = 10**9  # In nanoseconds.


def _lend(line: Line, number: int) -> threading.Thread:
    """A caller that lends its thread to a frame."""

    def put() -> None:
        assert line.batcher.reserve()
        line.batcher.put(line.request(number), leads=True)

    caller = threading.Thread(target=put, name=f"caller-{number}")
    caller.start()
    return caller


def test_a_caller_that_lends_its_thread_infers_its_own_frame() -> None:
    """To wake the engine's thread, and then the caller's, takes a good part of what is not inference."""
    line = Line(Gated(is_reentrant=True))
    line.start()
    line.engine.gate.set()
    caller = _lend(line, 7)
    caller.join(WAIT_S)
    assert line.numbers() == [7]
    assert line.engine.threads == [caller]
    line.finish()


def test_an_engine_that_is_not_for_any_thread_is_left_to_its_own() -> None:
    """OpenMP would keep a team of threads for every caller that ever came."""
    line = Line(Gated())
    line.start()
    line.engine.gate.set()
    _lend(line, 7).join(WAIT_S)
    line.finish()
    assert line.numbers() == [7]
    assert [thread.name for thread in line.engine.threads] == ["engine"]


def test_a_caller_does_not_wait_for_a_busy_engine() -> None:
    """Its frame waits with the others, and whoever comes to the engine next takes it along."""
    line = Line(Gated(is_reentrant=True), decoders=3)
    line.start()
    first = _lend(line, 0)
    assert line.engine.entered.wait(WAIT_S)
    second = _lend(line, 1)
    second.join(WAIT_S)
    assert not second.is_alive()
    assert not line.done
    line.finish()
    first.join(WAIT_S)
    assert line.numbers() == [0, 1]
    assert [thread.name for thread in line.engine.threads] == ["caller-0", "engine"]


def test_the_end_waits_for_a_caller_at_the_engine() -> None:
    """Its model is freed after the engine's threads have gone: not from under a caller."""
    line = Line(Gated(is_reentrant=True))
    caller = _lend(line, 0)
    assert line.engine.entered.wait(WAIT_S)
    line.batcher.close()
    own = threading.Thread(target=line.batcher.run)
    own.start()
    own.join(0.1)
    assert own.is_alive()
    line.engine.gate.set()
    own.join(WAIT_S)
    caller.join(WAIT_S)
    assert not own.is_alive()
    assert line.numbers() == [0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_met_by_a_caller_leaves_the_engine_to_others() -> None:
    """The place is given back: the node's end, which the bug brings about, must find nobody at the engine."""
    line = Line(Gated(error=ZeroDivisionError("bug"), is_reentrant=True))
    line.engine.gate.set()
    _lend(line, 0).join(WAIT_S)
    line.engine.error = None
    line.start()
    line.put(line.request(1))
    line.finish()
    assert line.numbers() == [1]


def test_as_many_batches_are_inferred_at_a_time_as_there_are_instances() -> None:
    """On processors one inference leaves cores idle between its operations; a second one finds them."""
    both = threading.Barrier(2)

    class Meeting(Gated):
        def infer(self, batch: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> Outputs:
            both.wait(WAIT_S)  # Broken where the other one never comes.
            return super().infer(batch)

    line = Line(Meeting(is_reentrant=True), instances=2, decoders=2)
    line.put(line.request(0), line.request(1))
    line.start()
    line.finish()
    assert sorted(line.numbers()) == [0, 1]
    assert len({thread.ident for thread in line.engine.threads}) == 2


def test_a_frame_waits_for_the_first_place_that_gets_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else frames would be answered `expired` that a free place has all the time to infer."""
    now_ns = 10**12
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns)
    line = Line(Gated(is_reentrant=True), instances=2)
    first = _lend(line, 0)
    assert line.engine.entered.wait(WAIT_S)
    now_ns += _SECOND  # So long does one take.
    line.engine.gate.set()
    first.join(WAIT_S)
    line.engine.gate.clear()
    needed_ns, callers = [], []
    for number in (1, 2):
        line.engine.entered.clear()
        callers.append(_lend(line, number))
        assert line.engine.entered.wait(WAIT_S)
        needed_ns.append(line.batcher.needs_ns)
    line.engine.gate.set()
    for caller in callers:
        caller.join(WAIT_S)
    assert needed_ns == [_SECOND, 2 * _SECOND]
    assert sorted(line.numbers()) == [0, 1, 2]


def test_an_engine_that_takes_one_batch_at_a_time_says_so() -> None:
    """At the start, with what to do instead; not as wrong masks later."""
    tiny = model(engine=Engine())
    with pytest.raises(InstancesError, match=r"tiny runs on tensorflow, one batch at a time: .* 1 instead of 2"):
        tiny.instances = 2
    assert tiny.instances == 1
