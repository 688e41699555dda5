import pytest

from analysis.study.scenarios import (
    SCENARIOS,
    Footage,
    MultiStreamRules,
    RunLength,
    ScenarioSettings,
    ServerRules,
    VehicleLoad,
    frame_counts,
)
from analysis.study.tables import RUN_COLUMNS
from edge.cli import play
from edge.config import EdgeConfig
from shared.flags import override


def _load(name: str, vehicles: int = 2) -> VehicleLoad:
    return VehicleLoad(frames=24, warm_up=4, vehicles=vehicles, seed=100, settings=getattr(ScenarioSettings(), name))


def _config(name: str, load: VehicleLoad) -> EdgeConfig:
    """Parses a scenario's flags like `skylane edge play`."""
    parsed = play.make_context("play", ["source", *SCENARIOS[name].flags(load)], resilient_parsing=False).params
    given = {key: value for key, value in parsed.items() if key in EdgeConfig.model_fields}
    return override(EdgeConfig(), given)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_flags_of_every_scenario_are_valid(name: str) -> None:
    """A flag that `skylane edge play` does not know would fail every run of the scenario."""
    config = _config(name, _load(name))
    assert config.closed_loop != (config.arrivals != "source")
    assert SCENARIOS[name].metric in RUN_COLUMNS


def test_every_scenario_has_settings() -> None:
    """The settings of a scenario are looked up by its name."""
    assert list(ScenarioSettings.model_fields) == list(SCENARIOS)


def test_the_server_scenario_drops_no_frame_and_divides_the_rate_among_vehicles() -> None:
    """Dropping frames at the vehicle would hide their latency; the queue therefore holds all frames."""
    load = _load("server")
    first, second = (_config("server", load.of_vehicle(number)) for number in (1, 2))
    assert isinstance(load.settings, ServerRules)
    assert first.arrival_rate_hz == load.settings.rate_hz / 2
    assert (first.queue, first.seed, second.seed) == (24, 101, 102)


def test_unanswered_frames_of_all_vehicles_stay_below_the_queue_limit_of_a_worker() -> None:
    """Otherwise the worker replies `overloaded`, and the run is invalid."""
    for vehicles in (1, 3, 16, 48):
        assert vehicles * _config("offline", _load("offline", vehicles)).window <= 64


def test_one_frame_is_in_flight_for_each_worker() -> None:
    """Otherwise frames would wait at the workers, where the gate cannot reuse a result for them any more."""
    settings = ScenarioSettings().one_per_worker
    for vehicles, workers, window in ((1, 1, 1), (1, 8, 8), (2, 8, 4), (4, 2, 1)):
        load = VehicleLoad(frames=24, warm_up=0, vehicles=vehicles, seed=100, settings=settings, workers=workers)
        config = _config("one_per_worker", load)
        assert (config.closed_loop, config.window, config.burst) == (True, window, 24)


def test_frame_counts_are_rounded_up_to_complete_queries() -> None:
    """An incomplete query has no latency."""
    settings = MultiStreamRules(frames=20, samples_per_query=8)
    assert frame_counts("multi_stream", settings, frames=5, warm_up=3) == (24, 8)


def test_a_cold_start_has_no_warm_up() -> None:
    """Its first frame must be measured."""
    assert frame_counts("cold_start", RunLength(), frames=10, warm_up=5) == (10, 0)
    assert frame_counts("same_image", RunLength(warm_up_frames=2), frames=10, warm_up=5) == (10, 2)
    assert SCENARIOS["cold_start"].footage is SCENARIOS["same_image"].footage is Footage.ONE
