from pathlib import Path
from typing import Any

import click
import pytest

import skylane
from edge.config import EdgeConfig
from shared.config import ConfigError, read_yaml
from shared.flags import override

REFUSED = [
    ({"arrivals": "poisson"}, "arrivals: poisson needs arrival_rate_hz"),
    ({"arrival_rate_hz": 5.0}, "arrival_rate_hz: the source's own times are the schedule"),
    ({"arrivals": "uniform", "arrival_rate_hz": 5.0, "rate": 2.0}, "rate: uniform arrivals follow arrival_rate_hz"),
    ({"arrivals": "uniform", "arrival_rate_hz": 5.0, "closed_loop": True}, "arrivals: a closed loop waits for answers"),
    ({"queue": 4, "closed_loop": True}, "queue: in a closed loop no frame is given up"),
    ({"burst": 8}, "burst: frames fall due together in a closed loop only: add closed_loop"),
    ({"retry_after_ms": 300, "retry": False}, "retry_after_ms: nothing is sent again without retry"),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED, ids=[problem.partition(":")[0] for _, problem in REFUSED])
def test_a_load_that_contradicts_itself_is_refused(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """A flag that is quietly without effect makes a figure that means something else."""
    with pytest.raises(click.UsageError) as flags:
        override(EdgeConfig(), given)
    assert flags.value.message.startswith(problem)
    path = tmp_path / "edge.yaml"
    path.write_text("\n".join(f"{key}: {str(value).lower()}" for key, value in given.items()))
    with pytest.raises(ConfigError) as file:
        read_yaml(path, EdgeConfig)
    assert str(file.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    "given",
    [
        {"arrivals": "poisson", "arrival_rate_hz": 5.0, "seed": 3, "queue": 100},
        {"closed_loop": True, "burst": 8, "window": 4},
        {"queue": 16, "rate": 2.0},
    ],
    ids=["server", "multi stream", "patient"],
)
def test_a_load_that_holds_together_is_taken(given: dict[str, Any]) -> None:
    """What the scenarios are made of."""
    assert override(EdgeConfig(), given).model_dump(include=set(given)) == given


def test_a_seed_is_drawn_where_chance_plays_a_part_and_none_was_given() -> None:
    """Then the manifest tells it; where nothing is drawn there is none to tell."""
    poisson = EdgeConfig.model_validate({"arrivals": "poisson", "arrival_rate_hz": 5.0})
    assert poisson.seeded().seed is not None
    assert poisson.seeded().seed != poisson.seeded().seed
    assert poisson.model_copy(update={"seed": 0}).seeded().seed == 0
    assert EdgeConfig().seeded().seed is None


@pytest.mark.parametrize(
    "flags",
    [("--arrivals", "uniform", "--arrival-rate", "5"), ("--closed-loop", "--burst", "2")],
    ids=["arrivals", "burst"],
)
def test_a_camera_keeps_its_own_time(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Its frames cannot be told when to exist; the flag is refused before the camera is opened."""
    with pytest.raises(SystemExit) as ended:
        skylane.main(["edge", "play", "camera:0", *flags])
    assert ended.value.code == 2
    assert "a camera's frames are due when it takes them" in capsys.readouterr().err


def test_the_shipped_configuration_is_taken() -> None:
    """`configs/edge.yaml` is what a user starts from, its comments what he takes out."""
    path = Path(__file__).parents[2] / "configs" / "edge.yaml"
    assert read_yaml(path, EdgeConfig) == EdgeConfig()
    keys = {line.removeprefix("# ").partition(":")[0] for line in path.read_text().splitlines() if ":" in line}
    assert EdgeConfig.model_fields.keys() <= keys
