import click
import pytest

from bench.study.plan.scenarios import (
    SCENARIOS,
    Footage,
    MultiStreamRules,
    RunLength,
    ScenarioSettings,
    ServerRules,
    VehicleLoad,
    frame_counts,
)
from bench.study.results.tables import RUN_COLUMNS
from edge.cli import play
from edge.config import EdgeConfig
from shared.flags import override


def _load(name: str, vehicles: int = 2) -> VehicleLoad:
    return VehicleLoad(frames=24, warm_up=4, vehicles=vehicles, seed=100, settings=getattr(ScenarioSettings(), name))


def _config(name: str, load: VehicleLoad) -> EdgeConfig:
    """What `skylane edge play` makes of a scenario's flags."""
    parsed = play.make_context("play", ["source", *SCENARIOS[name].flags(load)], resilient_parsing=False).params
    given = {key: value for key, value in parsed.items() if key in EdgeConfig.model_fields}
    return override(EdgeConfig(), given)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_something_a_vehicle_can_be_told(name: str) -> None:
    """The table speaks in flags: one that the vehicle does not know would fail every run of the scenario."""
    config = _config(name, _load(name))
    assert config.closed_loop != (config.arrivals != "source")
    assert SCENARIOS[name].metric in RUN_COLUMNS


def test_settings_and_table_name_the_same_scenarios() -> None:
    """A scenario without settings could not be looked up."""
    assert list(ScenarioSettings.model_fields) == list(SCENARIOS)


def test_a_server_gives_up_no_frame_and_its_vehicles_share_the_rate() -> None:
    """A frame that waits too long has to show in the latency: dropping it at the edge would flatter the system."""
    load = _load("server")
    first, second = (_config("server", load.of_vehicle(number)) for number in (1, 2))
    assert isinstance(load.settings, ServerRules)
    assert first.arrival_rate_hz == load.settings.rate_hz / 2
    assert (first.queue, first.seed, second.seed) == (24, 101, 102)


def test_unanswered_frames_of_all_vehicles_stay_below_what_a_worker_lets_wait() -> None:
    """Otherwise the worker answers `overloaded`, and a run is invalid for want of a place in a queue."""
    for vehicles in (1, 3, 16, 48):
        assert vehicles * _config("offline", _load("offline", vehicles)).window <= 64


def test_queries_are_whole() -> None:
    """Half a query has no latency."""
    settings = MultiStreamRules(frames=20, samples_per_query=8)
    assert frame_counts("multi_stream", settings, frames=5, warm_up=3) == (24, 8)


def test_a_cold_start_leaves_nothing_out() -> None:
    """Its first frame is the point."""
    assert frame_counts("cold_start", RunLength(), frames=10, warm_up=5) == (10, 0)
    assert frame_counts("same_image", RunLength(warm_up_frames=2), frames=10, warm_up=5) == (10, 2)
    assert SCENARIOS["cold_start"].footage is SCENARIOS["same_image"].footage is Footage.ONE


def test_an_unknown_flag_would_be_found() -> None:
    """That the check above can fail."""
    with pytest.raises(click.NoSuchOption):
        play.make_context("play", ["source", "--no-such-flag"])
