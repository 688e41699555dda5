"""Computes the answers of a model before a study, for workers whose inference takes a fixed time.

A child process computes them, because TensorFlow would keep memory and threads in the process of the study.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.study.axes import codec_and_quality
from analysis.study.cell import WorkerSetup
from analysis.study.scenarios import SCENARIOS
from analysis.study.study_plan import StudyPlan, cells
from cloud.models.loader import ModelLoader
from ops.processes.child import Child, reply
from ops.processes.child import settings as child_settings
from ops.processes.fixed_time import known_answers_file
from ops.processes.playback import PlaybackSettings
from ops.study.sample_drives import source_of
from ops.study.variants import ModelVariant
from shared.models.repository import Repository

_FOLDER = Path("runs") / "answers"
_TIMEOUT_S = 3600.0  # Time limit for one drive.


def answers_of(plan: StudyPlan, setup: WorkerSetup, variant: ModelVariant) -> tuple[Path, ...]:
    """Returns files with the answers of a setup's model to all frames of its cells; computes those that are missing.

    Raises:
        SkylaneError: The model cannot be loaded, or a drive has no readable frame.
    """
    playbacks = dict.fromkeys(_playbacks(plan, setup, variant))
    return tuple(answers_file(settings, folder) for settings, folder in playbacks)


def answers_file(settings: PlaybackSettings, folder: Path) -> Path:
    """Returns the file in `folder` with a model's answers to the frames of one drive; computes it if it is missing.

    Raises:
        SkylaneError: The model cannot be loaded, or the drive has no readable frame.
    """
    names = ("bag", "models", "model", "codec", "quality", "frames", "resize_at")
    values = {name: getattr(settings, name) for name in names}
    with Child(__name__, {"playback": values, "folder": folder}, title="computing the answers of the model") as child:
        return Path(child.wait(_TIMEOUT_S))


def _playbacks(plan: StudyPlan, setup: WorkerSetup, variant: ModelVariant) -> Iterator[tuple[PlaybackSettings, Path]]:
    """Yields the frames of each cell and drive, and the folder for the answers to frames encoded in this way."""
    for cell in cells(plan):
        if cell.setup != setup:
            continue
        codec, quality = codec_and_quality(cell.codec)
        encoding: dict[str, Any] = {"codec": codec} if quality is None else {"codec": codec, "quality": quality}
        resize_at = cell.resize_at or SCENARIOS[cell.scenario].resize_at
        for seed in plan.drive_seeds:
            bag = source_of(plan, cell, seed)
            settings = PlaybackSettings(
                bag, variant.root, variant.name, frames=plan.drive_frames, resize_at=resize_at, **encoding
            )
            yield settings, _FOLDER / f"{cell.codec}-{resize_at}"


def main(*, playback: dict[str, Any], folder: str) -> None:
    """Computes the answers to the frames of one drive, unless their file exists; replies with its path."""
    paths = {name: Path(playback[name]) for name in ("bag", "models")}
    settings = PlaybackSettings(**(playback | paths))
    model = ModelLoader(Repository(settings.models)).open(settings.model)
    reply(str(known_answers_file(settings, model, Path(folder))))


if __name__ == "__main__":
    main(**child_settings())
