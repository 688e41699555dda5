"""What programs pass to the Python API by mistake: every error is a SkylaneError, never one of Python or of a library."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skylane
from skylane.arguments import list_argument
from tests.pipeline.rig import pictures

ODD = [None, 5, b"drive", "", "a\0b", object(), [None], [5], {"a": 1}, "x" * 300, np.zeros(3), True, Path("nope")]


@pytest.fixture
def calls(models: Path, run: Path) -> dict[str, Callable[[Any], object]]:
    """Functions of the API by the argument that they are called with."""

    def model(name: Any = "tiny", **settings: Any) -> None:
        skylane.Model(name, **({"models": models} | settings)).close()

    def play(source: Any = run, config: Any = None, **settings: Any) -> None:
        next(iter(skylane.play(source, config, connect_timeout_s=0.1, **settings)))

    return {
        "compare": skylane.compare,
        "differences": skylane.differences,
        "open_run": skylane.open_run,
        "truth": skylane.open_run(run).accuracy,
        "open_bag": skylane.open_bag,
        "name": model,
        "engine": lambda value: model(engine=value),
        "device": lambda value: model(device=value),
        "models": lambda value: model(models=value),
        "source": play,
        "config": lambda value: play(config=value),
        "topics": lambda value: play(topics=value),
        "EdgeConfig": lambda value: skylane.EdgeConfig(rate=value, nonsense=value),
    }


@pytest.mark.parametrize("argument", ["compare", "differences", "open_run", "truth", "open_bag", "name", "engine", "device",
                                      "models", "source", "config", "topics", "EdgeConfig"])  # fmt: skip
def test_a_wrong_argument_is_a_skylane_error(calls: dict[str, Callable[[Any], object]], argument: str) -> None:
    """None, a number, bytes, an array, a name that is too long, and so on."""
    accepts_none = argument in {"engine", "models", "config"}
    for value in ODD[1 if accepts_none else 0 :]:
        with pytest.raises(skylane.SkylaneError):
            calls[argument](value)


def test_what_is_no_image_is_a_skylane_error(models: Path) -> None:
    """`cv2.imread` gives None for a file that it cannot read."""
    values: list[Any] = [*ODD, [[1, 2], [3]]]
    arrays = [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), None]
    with skylane.Model("tiny", models=models) as opened:
        for value in values:
            with pytest.raises(skylane.SkylaneError):
                opened.predict(value)
            with pytest.raises(skylane.SkylaneError, match="give frame or model"):
                opened.predict(np.zeros((4, 4, 3), np.uint8), mask_size=value)
        for array in arrays:
            with pytest.raises(skylane.SkylaneError, match="give RGB, H×W×3 uint8"):
                opened.predict(array)  # type: ignore[arg-type]


def test_a_closed_model_says_so(models: Path) -> None:
    """Closing it twice is harmless, and its classes stay known."""
    opened = skylane.Model("tiny", models=models)
    names = opened.class_names
    opened.close()
    opened.close()
    assert opened.class_names == names
    with pytest.raises(skylane.SkylaneError, match="model tiny is closed"):
        opened.predict(np.zeros((4, 4, 3), np.uint8))


def test_one_value_is_a_list_of_one() -> None:
    """A text is never gone through letter by letter."""
    assert list_argument("runs", "runs/a", "a run") == ["runs/a"]
    assert list_argument("runs", Path("runs/a"), "a run") == [Path("runs/a")]
    assert list_argument("runs", (name for name in "ab"), "a run") == ["a", "b"]
    config = skylane.EdgeConfig(topics="/camera", sinks="png")
    assert (config.topics, config.sinks) == (("/camera",), ("png",))


def test_the_environment_names_the_broker_unless_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the commands; the error of a broker that is not there has its address."""
    monkeypatch.setenv("SKYLANE_BROKER", "mqtt://127.0.0.1:9")
    source = pictures(tmp_path, 1)
    settings: dict[str, Any] = {"connect_timeout_s": 0.1}
    for given, port in (({}, 9), ({"broker": "mqtt://127.0.0.1:11"}, 11)):
        with pytest.raises(skylane.SkylaneError, match=rf"127\.0\.0\.1:{port}\b"):
            next(iter(skylane.play(source, **settings, **given)))
