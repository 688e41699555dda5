"""The configuration of the vehicle node."""

from pathlib import Path
from typing import Any

import click
import pytest

from edge.config import EdgeConfig
from shared.config import ConfigError, read_yaml
from shared.flags import override
from skylane import cli

FUSION = Path(__file__)  # Any file.
REFUSED = [
    ({"arrivals": "poisson"}, "arrivals: poisson needs arrival_rate_hz"),
    ({"arrival_rate_hz": 5.0}, "arrival_rate_hz: the times of the source are the schedule"),
    ({"arrivals": "uniform", "arrival_rate_hz": 5.0, "rate": 2.0}, "rate: uniform arrivals follow arrival_rate_hz"),
    ({"arrivals": "uniform", "arrival_rate_hz": 5.0, "closed_loop": True}, "arrivals: a closed loop waits for answers"),
    ({"queue": 4, "closed_loop": True}, "queue: a closed loop drops no frame"),
    ({"burst": 8}, "burst: only a closed loop sends bursts: add closed_loop"),
    ({"retry_after_ms": 300, "retry": False}, "retry_after_ms: every frame is sent only once (see retry)"),
    ({"gate_threshold": 5.0}, "gate_threshold: only a gate compares frames: add gate, or leave it out"),
    (
        {"gate": "pixels", "gate_threshold": 101.0},
        "gate_threshold: 101 is no distance by pixels: give 0 to 100, or auto",
    ),
    ({"cascade": True}, "cascade: there is no model on the vehicle: add local_model, or leave it out"),
    ({"c_high": 0.9, "local_model": "local"}, "c_high: only a cascade has thresholds: add cascade, or leave it out"),
    ({"present_max_age_ms": 500}, "present_max_age_ms: nothing is presented: add present, or leave it out"),
    (
        {"present": "hold", "mask_size": "frame"},
        "present: hold presents masks of the model's size: leave mask_size out",
    ),
    ({"present": "fuse"}, "present: fuse needs a model on the vehicle: add local_model"),
    (
        {"present": "warp", "fusion": FUSION},
        "fusion: warp combines no results: set present to fuse, or leave fusion out",
    ),
    (
        {"c_low": 0.9, "c_high": 0.1, "local_model": "local", "cascade": True},
        "c_low: c_low 0.9 and c_high 0.1: give 0 <= c_low < c_high <= 1",
    ),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED, ids=[problem[:30] for _, problem in REFUSED])
def test_contradicting_options_are_refused(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """An option that silently has no effect would make results mean something else."""
    with pytest.raises(click.UsageError) as flags:
        override(EdgeConfig(), given)
    assert flags.value.message.startswith(problem)
    path = tmp_path / "edge.yaml"
    path.write_text(
        "\n".join(f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in given.items())
    )
    with pytest.raises(ConfigError) as file:
        read_yaml(path, EdgeConfig)
    assert str(file.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    "given",
    [
        {"arrivals": "poisson", "arrival_rate_hz": 5.0, "seed": 3, "queue": 100},
        {"closed_loop": True, "burst": 8, "window": 4},
        {"queue": 16, "rate": 2.0},
        {"transport": "grpc", "worker_addresses": ("worker:8001",)},
        {"present": "warp", "present_max_age_ms": 500.0},
        {"present": "fuse", "local_model": "local", "fusion": FUSION},
    ],
    ids=["server", "multi stream", "queue", "grpc", "warp", "fuse"],
)
def test_consistent_options_are_accepted(given: dict[str, Any]) -> None:
    """These are combinations of the benchmark scenarios, a transport without a broker, and presenters."""
    assert override(EdgeConfig(), given).model_dump(include=set(given)) == given


def test_poisson_arrivals_without_a_seed_get_a_random_one() -> None:
    """The manifest records the seed; other arrivals need none."""
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
def test_a_camera_accepts_no_schedule(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A camera decides when its frames exist; the option is refused before the camera is opened."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["edge", "play", "camera:0", *flags])
    assert ended.value.code == 2
    assert "a camera's frames are due when it takes them" in capsys.readouterr().err


def test_the_shipped_configuration_contains_every_key_with_its_default() -> None:
    """Users start from `configs/edge.yaml` and uncomment lines."""
    path = Path(__file__).parents[2] / "configs" / "edge.yaml"
    assert read_yaml(path, EdgeConfig) == EdgeConfig()
    keys = {line.removeprefix("# ").partition(":")[0] for line in path.read_text().splitlines() if ":" in line}
    assert EdgeConfig.model_fields.keys() <= keys


def test_a_dispatch_without_a_broker_is_refused() -> None:
    """The vehicle itself calls the workers then, and chooses by its frames in flight."""
    given = {"transport": "grpc", "worker_addresses": ("worker:8001",), "dispatch": "group"}
    with pytest.raises(click.UsageError, match="dispatch: grpc sends each frame to the worker with the fewest frames"):
        override(EdgeConfig(), given)
