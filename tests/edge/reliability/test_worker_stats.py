from edge.reliability.worker_stats import WorkerStats

MS = 1_000_000


def test_times_are_those_of_the_last_hundred_answers() -> None:
    """What answers took at the beginning of a run must not say what a silence means now."""
    pulse = WorkerStats()
    assert pulse.times.count == 0
    for number in range(300):
        pulse.answered("w", number, number + (1000 if number < 200 else number - 199) * MS)
    times = pulse.times
    assert (times.count, times.median_ns, times.p95_ns, times.p99_ns) == (100, 51 * MS, 96 * MS, 100 * MS)


def test_who_answered_when_is_known_by_worker() -> None:
    """A retry goes to the one that answered last."""
    pulse = WorkerStats()
    assert (pulse.answered_ns("a"), pulse.last_answered_ns()) == (0, 0)
    pulse.answered("a", 0, 5)
    pulse.answered("b", 0, 7)
    pulse.answered("a", 0, 9)
    assert (pulse.answered_ns("a"), pulse.answered_ns("b"), pulse.last_answered_ns()) == (9, 7, 9)


def test_names_of_workers_are_bounded() -> None:
    """Whoever may answer could call himself by a new name each time."""
    pulse = WorkerStats()
    for number in range(2000):
        pulse.answered(f"w{number}", 0, number + 1)
    assert len(pulse._answered_ns) == 512
    assert pulse.answered_ns("w1999") == 2000


def test_frames_that_were_overtaken_are_known() -> None:
    """Later frames whose answers came first are what tells a loss from slowness."""
    pulse = WorkerStats()
    for sent_ns in (10, 20, 30):
        pulse.answered("w", sent_ns, 100)
    assert [pulse.overtakers(sent_ns) for sent_ns in (5, 10, 25, 30)] == [3, 2, 1, 0]


def test_retries_in_vain_make_cautious_and_time_makes_bold_again() -> None:
    """Where all are slow, sending again would make them slower; where it helps, it must not stay forbidden."""
    pulse = WorkerStats()
    for expected in (2, 4, 8, 16, 16):
        pulse.retried(in_vain=True)
        assert pulse.caution == expected
    pulse.retried(in_vain=False)
    assert pulse.caution == 8
    for _ in range(100):
        pulse.answered("w", 0, 1)
    assert pulse.caution == 4
