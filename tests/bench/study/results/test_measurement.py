from pathlib import Path

import pytest

from bench.study.execution.capacity import step_of
from bench.study.execution.fleet import RunError
from bench.study.plan.scenarios import CapacitySettings, Length, MultiStream, Offline, Rules, Server, SingleStream
from bench.study.results.measurement import figures, measure, usage
from bench.study.results.validity import judge
from tests.support.simulated_study import ORIGIN_NS, write_run


def test_what_goes_before_is_warm_up_and_counts_nowhere_but_in_the_outcomes(tmp_path: Path) -> None:
    """The first frames meet cold caches; leaving them out silently would be a lie, so the table has their phase."""
    write_run(tmp_path / "vehicle-1", [0, 500, 600, 700, 800], [500, 100, 100, 100, 100])
    run = measure(tmp_path, 1, 1)
    assert list(run.frames["phase"]) == ["warm_up", "measured", "measured", "measured", "measured"]
    told = figures(run, Length())
    assert (told["frames_read"], told["frames_measured"], told["answered"]) == (5, 4, 5)
    assert (told["total_p50_ms"], told["total_mean_ms"]) == (100.0, 100.0)
    assert run.seconds == pytest.approx(0.4)
    assert told["throughput_hz"] == pytest.approx(10.0)


def test_only_the_time_in_which_all_vehicles_run_is_measured(tmp_path: Path) -> None:
    """A vehicle alone at the worker is quicker: its frames there are no measure of several."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200, 300, 400, 500], [100] * 6)
    write_run(tmp_path / "vehicle-2", [150, 250, 350, 450, 550, 650], [100] * 6)
    run = measure(tmp_path, 2, 1)
    phases = run.frames.groupby("vehicle_run")["phase"].agg(list)
    assert phases["vehicle-1"] == ["warm_up", "warm_up", "warm_up", "measured", "measured", "measured"]
    assert phases["vehicle-2"] == ["warm_up", "measured", "measured", "measured", "measured", "cool_down"]
    assert run.seconds == pytest.approx(0.35)
    # Seven answers came back between 250 and 600 ms, whoever's and whenever their frames fell due.
    assert figures(run, Length())["throughput_hz"] == pytest.approx(7 / 0.35)


def test_a_slow_frame_that_fell_due_in_time_is_measured_though_it_came_late(tmp_path: Path) -> None:
    """Choosing frames by their answers would leave out the slow ones."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200], [100] * 3)
    write_run(tmp_path / "vehicle-2", [0, 100, 200], [100, 100, 5000])
    assert list(measure(tmp_path, 2, 0).measured["total_ms"]) == [100, 100, 100, 100, 100, 5000]


def test_vehicles_that_never_ran_at_once_are_no_measure_of_several(tmp_path: Path) -> None:
    """It happens with too few frames; the run fails and says so."""
    write_run(tmp_path / "vehicle-1", [0, 10], [10, 10])
    write_run(tmp_path / "vehicle-2", [100, 110], [10, 10])
    with pytest.raises(RunError, match="no time in which all vehicles ran: raise frames"):
        measure(tmp_path, 2, 0)


def test_a_log_that_cannot_be_read_whole_fails_the_run(tmp_path: Path) -> None:
    """A figure of a broken log is worse than none."""
    write_run(tmp_path / "vehicle-1", [0, 10], [10, 10])
    path = tmp_path / "vehicle-1" / "latency.csv"
    path.write_text(path.read_text().replace("answered", "perhaps", 1))
    with pytest.raises(RunError, match=r"latency\.csv, row 2, column outcome: 'perhaps' is no outcome"):
        measure(tmp_path, 1, 0)


def test_a_vehicle_that_read_no_more_than_its_warm_up_has_nothing_to_show(tmp_path: Path) -> None:
    """A source of one picture without a loop would give this."""
    write_run(tmp_path / "vehicle-1", [0], [10])
    with pytest.raises(RunError, match="vehicle-1 read 1 frames, of which 2 warm up: none is measured"):
        measure(tmp_path, 1, 2)


def test_a_query_takes_as_long_as_its_last_frame(tmp_path: Path) -> None:
    """MLPerf's multi-stream latency is of the query, not of the sample; half a query at the end is none."""
    write_run(tmp_path / "vehicle-1", [0, 0, 50, 50, 100], [20, 40, 30, 30, 10])
    settings = MultiStream(samples_per_query=2, min_queries=2, min_duration_s=0)
    run = measure(tmp_path, 1, 0)
    assert list(run.queries_ms(2)) == [40, 30]
    assert figures(run, settings)["query_p99_ms"] is None  # Two queries have no p99.
    verdict = judge(run, settings)
    assert verdict.validity == "VALID"
    assert "answered 2 queries with min_queries 2 instead of 662" in verdict.reason
    assert "2 samples a query instead of 8" in verdict.reason


def test_what_the_nodes_took_is_summed_by_role_over_the_measured_time(tmp_path: Path) -> None:
    """Two workers at 80 % take 160 % of a core; a sample of the warm-up is not theirs."""
    lines = ["at_ns,node,pid,cpu_percent,rss_bytes,bytes_in,bytes_out,gpu_percent,gpu_memory_bytes,gpu_power_w"]
    for at, cpu in ((0, 400), (5, 400), (10, 70), (15, 90)):
        lines += [f"{ORIGIN_NS + at},worker/worker-{n},{n},{cpu},{n * 1_000_000},,,,," for n in (1, 2)]
        lines.append(f"{ORIGIN_NS + at},gpu/0,,,,,,{cpu / 10},{cpu * 1_000_000},")
    (tmp_path / "resources.csv").write_text("\n".join(lines) + "\n")
    told = usage(tmp_path / "resources.csv", ORIGIN_NS + 5, ORIGIN_NS + 20)
    assert (told["worker_cpu_percent"], told["worker_rss_mb"]) == (160.0, 3.0)
    assert (told["gpu_percent"], told["gpu_memory_mb"]) == (8.0, 90.0)
    assert told["vehicle_cpu_percent"] is None
    assert set(usage(tmp_path / "none.csv", 0, 1).values()) == {None}


def test_a_sample_weighs_as_much_as_its_period_lies_in_the_measured_time(tmp_path: Path) -> None:
    """A sample looks back: half of one that came in time may tell of what went before."""
    lines = ["at_ns,node,pid,cpu_percent,rss_bytes"]
    lines += [f"{ORIGIN_NS + at},broker,1,{cpu},1" for at, cpu in ((0, ""), (10, 100), (20, 40))]
    path = tmp_path / "resources.csv"
    path.write_text("\n".join(lines) + "\n")
    assert usage(path, ORIGIN_NS + 5, ORIGIN_NS + 20)["broker_cpu_percent"] == pytest.approx((5 * 100 + 10 * 40) / 15)
    assert usage(path, ORIGIN_NS + 11, ORIGIN_NS + 14)["broker_cpu_percent"] is None
    assert usage(path, ORIGIN_NS + 30, ORIGIN_NS + 40)["broker_cpu_percent"] is None


def test_a_vehicle_that_was_sampled_only_as_it_started_has_no_memory_and_no_load(tmp_path: Path) -> None:
    """Nine megabytes of a process that has not loaded Python yet are no figure of a vehicle."""
    path = tmp_path / "resources.csv"
    path.write_text(f"at_ns,node,pid,cpu_percent,rss_bytes\n{ORIGIN_NS},vehicle/vehicle-1,1,,9000000\n")
    told = usage(path, ORIGIN_NS + 500, ORIGIN_NS + 600)
    assert (told["vehicle_cpu_percent"], told["vehicle_rss_mb"]) == (None, None)


def test_where_nothing_warms_up_every_frame_of_every_vehicle_is_measured(tmp_path: Path) -> None:
    """The cold frame is the first vehicle's, and a burst falls due at once: neither waits for the last vehicle."""
    write_run(tmp_path / "vehicle-1", [0, 0, 0], [900, 910, 920])
    write_run(tmp_path / "vehicle-2", [50, 50, 50], [860, 870, 950])
    run = measure(tmp_path, 2, 0, whole=True)
    told = figures(run, Length())
    assert (told["frames_measured"], told["measured_s"]) == (6, pytest.approx(1.0))
    assert told["throughput_hz"] == pytest.approx(6.0)
    assert "answered 6 samples" in judge(run, Offline()).reason


@pytest.mark.parametrize(
    ("settings", "validity", "reason"),
    [
        (SingleStream(), "INVALID", "ran 1.0 s with min_duration 600 s; answered 10 queries with min_queries 64"),
        (
            SingleStream(min_duration_s=1, min_queries=10),
            "VALID",
            (
                "ran 1.0 s with min_duration 1 s instead of 600 s; answered 10 queries with min_queries 10 instead of 64; "
                "all answered"
            ),
        ),
        (Server(min_duration_s=1, min_queries=10, limit_ms=99), "INVALID", "slowest frame 100.0 ms, limit 99 ms"),
        (
            Offline(min_duration_s=0),
            "INVALID",
            "answered 10 samples with min_samples 24576",
        ),
    ],
)
def test_the_verdict_names_every_rule_with_its_number(
    tmp_path: Path, settings: Rules, validity: str, reason: str
) -> None:
    """VALID by a rule that was lowered is another VALID, and has to say so."""
    write_run(tmp_path / "vehicle-1", [100 * number for number in range(10)], [100] * 10)
    verdict = judge(measure(tmp_path, 1, 0), settings)
    assert (verdict.validity, verdict.reason) == (validity, reason)


def test_one_frame_that_was_not_answered_makes_a_run_invalid(tmp_path: Path) -> None:
    """The scenario asks for an answer to every query: dropping the slow ones would make any system quick."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200], [100, None, 100])
    verdict = judge(measure(tmp_path, 1, 0), SingleStream(min_duration_s=0, min_queries=2))
    assert (verdict.validity, verdict.reason) == ("INVALID", "1 of 3 frames unanswered")


@pytest.mark.parametrize(("late", "validity"), [(0, "VALID"), (1, "INVALID")])
def test_a_server_is_valid_only_where_so_many_queries_can_show_that_99_percent_are_in_time(
    tmp_path: Path, late: int, validity: str
) -> None:
    """One late query of 459 leaves p99 in time, and more than one chance in a hundred that 99 % are not."""
    write_run(tmp_path / "vehicle-1", [10 * number for number in range(459)], [100] * (459 - late) + [500] * late)
    verdict = judge(measure(tmp_path, 1, 0), Server(min_duration_s=1, limit_ms=200))
    assert verdict.validity == validity
    assert f"{late} of 459 over the limit" in verdict.reason


def test_a_step_of_the_search_says_which_limit_it_passed(tmp_path: Path) -> None:
    """Capacity by latency and capacity by losses are mended differently."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200, 300], [100, None, 100, 100])
    run = measure(tmp_path, 1, 0)
    assert step_of(run, 1, CapacitySettings(limit_ms=100, unanswered_share=0.25)).fits
    strict = step_of(run, 1, CapacitySettings(limit_ms=50, unanswered_share=0.1))
    assert strict.reason == "slowest frame 100.0 ms is over 50 ms; 25.0% unanswered is over 10.0%"


def test_where_nothing_was_answered_no_latency_is_made_up(tmp_path: Path) -> None:
    """A mean of nothing is nothing, and a limit on it does not hold."""
    write_run(tmp_path / "vehicle-1", [0, 100], [None, None])
    run = measure(tmp_path, 1, 0)
    told = figures(run, Server())
    assert told["total_p99_ms"] is None
    assert told["total_mean_ms"] is None
    assert "slowest frame not measured, limit 1000 ms" in judge(run, Server()).reason
    assert "no frame was answered" in step_of(run, 1, CapacitySettings()).reason
