"""Statistics of the workers' replies."""

from edge.workers.worker_stats import WorkerStats

MS = 1_000_000


def test_reply_times_cover_the_last_hundred_replies() -> None:
    """The slow start of a run must not affect when a frame is retried later."""
    stats = WorkerStats()
    assert stats.times.count == 0
    for number in range(300):
        stats.add_reply("w", number, number + (1000 if number < 200 else number - 199) * MS)
    times = stats.times
    assert (times.count, times.median_ns, times.p95_ns, times.p99_ns) == (100, 51 * MS, 96 * MS, 100 * MS)


def test_the_last_reply_is_known_per_worker() -> None:
    """A retry goes to the worker that replied last."""
    stats = WorkerStats()
    assert (stats.last_reply_ns("a"), stats.latest_reply_ns()) == (0, 0)
    stats.add_reply("a", 0, 5)
    stats.add_reply("b", 0, 7)
    stats.add_reply("a", 0, 9)
    assert (stats.last_reply_ns("a"), stats.last_reply_ns("b"), stats.latest_reply_ns()) == (9, 7, 9)


def test_the_number_of_workers_is_bounded() -> None:
    """A hostile worker could use a new name in every reply."""
    stats = WorkerStats()
    for number in range(2000):
        stats.add_reply(f"w{number}", 0, number + 1)
    assert sum(stats.last_reply_ns(f"w{number}") > 0 for number in range(2000)) == 512
    assert stats.last_reply_ns("w1999") == 2000


def test_replies_to_later_frames_are_counted() -> None:
    """They distinguish a lost frame from a slow worker."""
    stats = WorkerStats()
    for sent_ns in (10, 20, 30):
        stats.add_reply("w", sent_ns, 100)
    assert [stats.replies_to_later_frames(sent_ns) for sent_ns in (5, 10, 25, 30)] == [3, 2, 1, 0]


def test_needless_retries_raise_the_silence_multiplier_and_time_lowers_it() -> None:
    """When all workers are slow, retries make them slower; when retries help, they must not stay disabled."""
    stats = WorkerStats()
    for expected in (2, 4, 8, 16, 16):
        stats.add_retry(was_useful=False)
        assert stats.silence_multiplier == expected
    stats.add_retry(was_useful=True)
    assert stats.silence_multiplier == 8
    for _ in range(100):
        stats.add_reply("w", 0, 1)
    assert stats.silence_multiplier == 4
