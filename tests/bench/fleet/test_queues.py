import numpy as np
import pandas as pd
import pytest

from bench.fleet.run_record import QueueHistory, ideal_latencies_ms, share_after_ms

_MS = 1_000_000
_S = 1_000_000_000


def _frames(worker: str, *times_ms: tuple[float, float]) -> pd.DataFrame:
    """Frames with the times at which a worker received and answered them."""
    times_ns = pd.DataFrame(times_ms, columns=["received_ns", "replied_ns"]) * _MS
    return times_ns.round().astype(np.int64).assign(worker=worker)


def _steady(worker: str, queue: int, begin_ms: int, end_ms: int) -> pd.DataFrame:
    """Frames that keep a queue at a constant length."""
    return _frames(worker, *[(at_ms, at_ms + 100) for at_ms in range(begin_ms, end_ms, 100) for _ in range(queue)])


def test_the_ideal_queue_serves_in_order_by_the_fastest_free_server() -> None:
    """The first frame takes the fast server, the second the slow one, the third waits for the fast one."""
    assert ideal_latencies_ms([0, 0, 10 * _MS], [500, 100]) == pytest.approx([100, 500, 190])


def test_the_ideal_queue_prefers_a_fast_server_that_became_free_at_the_same_time() -> None:
    """Otherwise the ideal would be worse than it could be."""
    assert ideal_latencies_ms([0, 0, 600 * _MS], [500, 100])[-1] == pytest.approx(100)


def test_a_lone_ideal_server_is_a_plain_queue() -> None:
    """Each frame waits for all that came before it."""
    assert ideal_latencies_ms([0, 0, 0], [20]) == pytest.approx([20, 40, 60])


def test_queues_are_reconstructed_from_the_times_of_the_frames() -> None:
    """Two frames at one worker for half of the time are a mean of one."""
    alive = {"a": (100.0, (0, _S)), "b": (100.0, (0, _S))}
    frames = pd.concat([_frames("a", (0, 500), (0, 500)), _frames("b", (250, 1000))])
    history = QueueHistory.of(frames, alive, (0, _S))
    assert history.means() == pytest.approx([1.0, 0.75])
    assert history.means((0, _S // 2)) == pytest.approx([2.0, 0.5])
    assert history.lengths.max(axis=0).tolist() == [2, 1]


def test_the_longest_imbalance_is_that_of_the_longest_queue() -> None:
    """A queue of 8 beside three of 1 is above twice their mean for two seconds; a queue of 2 beside them is not."""
    alive = dict.fromkeys("abcd", (100.0, (0, 5 * _S)))
    frames = pd.concat([_steady(name, 1, 0, 5000) for name in "bcd"])
    calm = QueueHistory.of(pd.concat([frames, _steady("a", 2, 0, 5000)]), alive, (0, 5 * _S))
    assert calm.longest_imbalance_s() == 0
    busy = pd.concat([_steady("a", 1, 0, 2000), _steady("a", 8, 2000, 4000), _steady("a", 1, 4000, 5000)])
    assert QueueHistory.of(pd.concat([frames, busy]), alive, (0, 5 * _S)).longest_imbalance_s() == pytest.approx(
        2, abs=0.01
    )


def test_queues_are_balanced_once_none_differs_by_more_than_twice() -> None:
    """One of three workers gets nothing in the first second after an event."""
    alive = dict.fromkeys("abc", (100.0, (0, 4 * _S)))
    frames = pd.concat([_steady("a", 4, 0, 4000), _steady("b", 4, 0, 4000), _steady("c", 4, 1000, 4000)])
    balanced_ms = QueueHistory.of(frames, alive, (0, 4 * _S)).balanced_after_ms(0)
    assert balanced_ms is not None
    assert 600 < balanced_ms <= 1000  # A mean over half a second reaches half of the others' earlier.
    never = QueueHistory.of(pd.concat([_steady("a", 9, 0, 4000), _steady("b", 1, 0, 4000)]), alive, (0, 4 * _S))
    assert never.balanced_after_ms(0) is None


def test_unequal_workers_are_balanced_with_unequal_queues() -> None:
    """A worker that takes five times as long for a frame should have a fifth of the others' queue."""
    alive = {"a": (100.0, (0, 4 * _S)), "b": (100.0, (0, 4 * _S)), "c": (500.0, (0, 4 * _S))}
    fast = pd.concat([_steady("a", 5, 0, 4000), _steady("b", 5, 0, 4000)])
    even = QueueHistory.of(pd.concat([fast, _steady("c", 1, 0, 4000)]), alive, (0, 4 * _S))
    assert (even.balanced_after_ms(0), even.longest_imbalance_s()) == (0, 0)
    idle = QueueHistory.of(pd.concat([_steady("a", 1, 0, 4000), _steady("b", 1, 0, 4000)]), alive, (0, 4 * _S))
    assert idle.balanced_after_ms(0) == 0  # The slow worker would answer later than the busy ones.
    equal = QueueHistory.of(pd.concat([fast, _steady("c", 5, 0, 4000)]), alive, (0, 4 * _S))
    assert equal.balanced_after_ms(0) is None
    assert equal.longest_imbalance_s() == pytest.approx(4, abs=0.01)


def test_a_worker_has_its_share_when_it_receives_as_many_frames_as_the_others() -> None:
    """It gets its first frames a second after it joined."""
    frames = pd.concat([_steady("a", 1, 0, 4000), _steady("b", 1, 1000, 4000)])
    share_ms = share_after_ms(frames, "b", 2, 0)
    assert share_ms is not None
    assert 700 < share_ms <= 1000
    assert share_after_ms(_steady("a", 1, 0, 4000), "b", 2, 0) is None
