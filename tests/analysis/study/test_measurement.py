from pathlib import Path

import pytest

from analysis.study.measurement import RunError, judge, measure, resource_usage, run_metrics
from analysis.study.scenarios import (
    CapacitySettings,
    MultiStreamRules,
    OfflineRules,
    RunLength,
    ServerRules,
    SingleStreamRules,
    ValidityRules,
)
from ops.study.runner import judge_step
from tests.support.simulated_study import ORIGIN_NS, write_run


def test_warm_up_frames_count_only_in_the_outcomes(tmp_path: Path) -> None:
    """The table of frames keeps them with their phase."""
    write_run(tmp_path / "vehicle-1", [0, 500, 600, 700, 800], [500, 100, 100, 100, 100])
    run = measure(tmp_path, 1, 1)
    assert list(run.frames["phase"]) == ["warm_up", "measured", "measured", "measured", "measured"]
    metrics = run_metrics(run, RunLength())
    assert (metrics["frames_read"], metrics["frames_measured"], metrics["answered"]) == (5, 4, 5)
    assert (metrics["total_p50_ms"], metrics["total_mean_ms"]) == (100.0, 100.0)
    assert run.seconds == pytest.approx(0.4)
    assert metrics["throughput_hz"] == pytest.approx(10.0)


def test_results_of_any_origin_are_results(tmp_path: Path) -> None:
    """Throughput, latency and validity are what the user of the vehicle gets; only the bytes show that frames were not sent."""
    write_run(tmp_path / "vehicle-1", [0, 500, 600, 700, 800], [500, 4, 4, 100, 4], reused=[1, 2, 4])
    run = measure(tmp_path, 1, 0)
    metrics = run_metrics(run, RunLength())
    assert (metrics["answered"], metrics["reused"], metrics["frames_sent"]) == (2, 3, 2)
    assert run.seconds == pytest.approx(0.804)  # Until the last frame got its result.
    assert metrics["throughput_hz"] == pytest.approx(5 / 0.804)
    assert metrics["total_p50_ms"] == 4.0
    assert metrics["bytes_per_frame"] == pytest.approx(2 * 1100 / 5)
    assert run.unanswered_share == 0
    assert judge(run, OfflineRules(min_duration_s=0, min_samples=5)).validity == "VALID"


def test_only_the_time_in_which_all_vehicles_run_is_measured(tmp_path: Path) -> None:
    """A vehicle that uses the worker alone has lower latencies."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200, 300, 400, 500], [100] * 6)
    write_run(tmp_path / "vehicle-2", [150, 250, 350, 450, 550, 650], [100] * 6)
    run = measure(tmp_path, 2, 1)
    phases = run.frames.groupby("vehicle_run")["phase"].agg(list)
    assert phases["vehicle-1"] == ["warm_up", "warm_up", "warm_up", "measured", "measured", "measured"]
    assert phases["vehicle-2"] == ["warm_up", "measured", "measured", "measured", "measured", "cool_down"]
    assert run.seconds == pytest.approx(0.35)
    # Seven results of both vehicles were decoded between 250 and 600 ms.
    assert run_metrics(run, RunLength())["throughput_hz"] == pytest.approx(7 / 0.35)


def test_a_frame_due_in_the_measured_time_is_measured_even_if_answered_later(tmp_path: Path) -> None:
    """Selecting frames by the time of their replies would exclude slow ones."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200], [100] * 3)
    write_run(tmp_path / "vehicle-2", [0, 100, 200], [100, 100, 5000])
    assert list(measure(tmp_path, 2, 0).measured["total_ms"]) == [100, 100, 100, 100, 100, 5000]


def test_a_run_fails_if_its_vehicles_never_ran_at_the_same_time(tmp_path: Path) -> None:
    """This happens with too few frames; the message asks for more."""
    write_run(tmp_path / "vehicle-1", [0, 10], [10, 10])
    write_run(tmp_path / "vehicle-2", [100, 110], [10, 10])
    with pytest.raises(RunError, match="no time in which all vehicles ran: increase frames"):
        measure(tmp_path, 2, 0)


def test_a_log_with_invalid_rows_fails_the_run(tmp_path: Path) -> None:
    """Results of an incomplete log would be misleading."""
    write_run(tmp_path / "vehicle-1", [0, 10], [10, 10])
    path = tmp_path / "vehicle-1" / "latency.csv"
    path.write_text(path.read_text().replace("answered", "perhaps", 1))
    with pytest.raises(RunError, match=r"latency\.csv, row 2, column outcome: 'perhaps' is not an outcome"):
        measure(tmp_path, 1, 0)


def test_a_run_without_frames_after_the_warm_up_fails(tmp_path: Path) -> None:
    """A source with a single image that is not repeated causes this."""
    write_run(tmp_path / "vehicle-1", [0], [10])
    with pytest.raises(RunError, match="vehicle-1 read 1 frames, but the warm-up takes 2: no frame is measured"):
        measure(tmp_path, 1, 2)


def test_the_latency_of_a_query_is_that_of_its_slowest_frame(tmp_path: Path) -> None:
    """MLPerf's multi-stream scenario measures complete queries; an incomplete one at the end is ignored."""
    write_run(tmp_path / "vehicle-1", [0, 0, 50, 50, 100], [20, 40, 30, 30, 10])
    settings = MultiStreamRules(samples_per_query=2, min_queries=2, min_duration_s=0)
    run = measure(tmp_path, 1, 0)
    assert list(run.queries_ms(2)) == [40, 30]
    assert run_metrics(run, settings)["query_p99_ms"] is None  # Two queries have no p99.
    verdict = judge(run, settings)
    assert verdict.validity == "VALID"
    assert "answered 2 queries with min_queries 2 instead of 662" in verdict.reason
    assert "2 samples per query instead of 8" in verdict.reason


def test_resources_are_summed_over_the_nodes_of_each_role(tmp_path: Path) -> None:
    """Two workers at 80 % CPU use 160 % of a core; samples of the warm-up do not count."""
    lines = ["at_ns,node,pid,cpu_percent,rss_bytes,bytes_in,bytes_out,gpu_percent,gpu_memory_bytes,gpu_power_w"]
    for at, cpu in ((0, 400), (5, 400), (10, 70), (15, 90)):
        lines += [f"{ORIGIN_NS + at},worker/worker-{n},{n},{cpu},{n * 1_000_000},,,,," for n in (1, 2)]
        lines.append(f"{ORIGIN_NS + at},gpu/0,,,,,,{cpu / 10},{cpu * 1_000_000},")
    (tmp_path / "resources.csv").write_text("\n".join(lines) + "\n")
    metrics = resource_usage(tmp_path / "resources.csv", ORIGIN_NS + 5, ORIGIN_NS + 20)
    assert (metrics["worker_cpu_percent"], metrics["worker_rss_mb"]) == (160.0, 3.0)
    assert (metrics["gpu_percent"], metrics["gpu_memory_mb"]) == (8.0, 90.0)
    assert metrics["vehicle_cpu_percent"] is None
    assert set(resource_usage(tmp_path / "none.csv", 0, 1).values()) == {None}


def test_a_sample_is_weighted_by_the_part_of_its_period_in_the_measured_time(tmp_path: Path) -> None:
    """A sample describes the period since the previous one, which may begin before the measured time."""
    lines = ["at_ns,node,pid,cpu_percent,rss_bytes"]
    lines += [f"{ORIGIN_NS + at},broker,1,{cpu},1" for at, cpu in ((0, ""), (10, 100), (20, 40))]
    path = tmp_path / "resources.csv"
    path.write_text("\n".join(lines) + "\n")
    assert resource_usage(path, ORIGIN_NS + 5, ORIGIN_NS + 20)["broker_cpu_percent"] == pytest.approx(
        (5 * 100 + 10 * 40) / 15
    )
    assert resource_usage(path, ORIGIN_NS + 11, ORIGIN_NS + 14)["broker_cpu_percent"] is None
    assert resource_usage(path, ORIGIN_NS + 30, ORIGIN_NS + 40)["broker_cpu_percent"] is None


def test_a_vehicle_sampled_only_at_its_start_has_no_memory_and_no_cpu(tmp_path: Path) -> None:
    """The 9 MB of a process that has not loaded Python yet say nothing about a vehicle."""
    path = tmp_path / "resources.csv"
    path.write_text(f"at_ns,node,pid,cpu_percent,rss_bytes\n{ORIGIN_NS},vehicle/vehicle-1,1,,9000000\n")
    metrics = resource_usage(path, ORIGIN_NS + 500, ORIGIN_NS + 600)
    assert (metrics["vehicle_cpu_percent"], metrics["vehicle_rss_mb"]) == (None, None)


def test_every_frame_of_a_scenario_without_warm_up_is_measured(tmp_path: Path) -> None:
    """The first frame of a cold worker and the frames of a burst are due before the last vehicle starts."""
    write_run(tmp_path / "vehicle-1", [0, 0, 0], [900, 910, 920])
    write_run(tmp_path / "vehicle-2", [50, 50, 50], [860, 870, 950])
    run = measure(tmp_path, 2, 0, every_frame=True)
    metrics = run_metrics(run, RunLength())
    assert (metrics["frames_measured"], metrics["measured_s"]) == (6, pytest.approx(1.0))
    assert metrics["throughput_hz"] == pytest.approx(6.0)
    assert "answered 6 samples" in judge(run, OfflineRules()).reason


@pytest.mark.parametrize(
    ("settings", "validity", "reason"),
    [
        (
            SingleStreamRules(),
            "INVALID",
            (
                "ran 1.0 s with min_duration 600 s: 600 times as many frames would satisfy it; "
                "answered 10 queries with min_queries 64: 7 times as many frames would satisfy it"
            ),
        ),
        (
            SingleStreamRules(min_duration_s=1, min_queries=10),
            "VALID",
            (
                "ran 1.0 s with min_duration 1 s instead of 600 s; answered 10 queries with min_queries 10 instead of 64; "
                "all answered"
            ),
        ),
        (ServerRules(min_duration_s=1, min_queries=10, limit_ms=99), "INVALID", "slowest frame 100.0 ms, limit 99 ms"),
        (
            OfflineRules(min_duration_s=0),
            "INVALID",
            "answered 10 samples with min_samples 24576: 2458 times as many frames would satisfy it",
        ),
    ],
)
def test_the_verdict_has_every_rule_with_its_number(
    tmp_path: Path, settings: ValidityRules, validity: str, reason: str
) -> None:
    """A rule that the study lowered is shown with MLPerf's number."""
    write_run(tmp_path / "vehicle-1", [100 * number for number in range(10)], [100] * 10)
    verdict = judge(measure(tmp_path, 1, 0), settings)
    assert (verdict.validity, verdict.reason) == (validity, reason)


def test_one_unanswered_frame_makes_a_run_invalid(tmp_path: Path) -> None:
    """Dropping slow frames would improve the latency of any system."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200], [100, None, 100])
    verdict = judge(measure(tmp_path, 1, 0), SingleStreamRules(min_duration_s=0, min_queries=2))
    assert (verdict.validity, verdict.reason) == ("INVALID", "1 of 3 frames unanswered")


@pytest.mark.parametrize(("late", "validity"), [(0, "VALID"), (1, "INVALID")])
def test_a_server_run_is_valid_only_if_its_queries_show_that_99_percent_are_in_time(
    tmp_path: Path, late: int, validity: str
) -> None:
    """With one late query of 459, the probability that fewer than 99 % are in time exceeds 1 %."""
    write_run(tmp_path / "vehicle-1", [10 * number for number in range(459)], [100] * (459 - late) + [500] * late)
    verdict = judge(measure(tmp_path, 1, 0), ServerRules(min_duration_s=1, limit_ms=200))
    assert verdict.validity == validity
    assert f"{late} of 459 over the limit" in verdict.reason


def test_a_capacity_step_names_the_exceeded_limits(tmp_path: Path) -> None:
    """Latency and losses need different improvements."""
    write_run(tmp_path / "vehicle-1", [0, 100, 200, 300], [100, None, 100, 100])
    run = measure(tmp_path, 1, 0)
    assert judge_step(run, 1, CapacitySettings(limit_ms=100, unanswered_share=0.25)).fits
    strict = judge_step(run, 1, CapacitySettings(limit_ms=50, unanswered_share=0.1))
    assert strict.reason == "slowest frame 100.0 ms is over 50 ms; 25.0% unanswered is over 10.0%"


def test_a_run_without_answers_has_no_latency_and_exceeds_every_limit(tmp_path: Path) -> None:
    """A missing latency must not pass a limit."""
    write_run(tmp_path / "vehicle-1", [0, 100], [None, None])
    run = measure(tmp_path, 1, 0)
    metrics = run_metrics(run, ServerRules())
    assert metrics["total_p99_ms"] is None
    assert metrics["total_mean_ms"] is None
    assert "slowest frame not measured, limit 1000 ms" in judge(run, ServerRules()).reason
    assert "no frame was answered" in judge_step(run, 1, CapacitySettings()).reason
