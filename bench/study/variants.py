"""The models that a study's cells want: as they lie in the repository, or built for the study from the same weights."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.study.cell import WorkerSetup
from cloud.repository import Repository
from modelling.recipes import RECIPES
from shared.errors import SkylaneError


class ModelMissingError(SkylaneError):
    """A cell's model cannot be had."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model in a repository."""

    root: Path
    name: str


class Variants:
    """Finds the models of cells, and builds those forms of a model that only the study wants."""

    def __init__(self, models: Path, built: Path) -> None:
        """`models`: the user's repository; `built`: a folder for what is built here."""
        self._models = Repository(models)
        self._built = built

    def find(self, setup: WorkerSetup) -> Variant:
        """The model of a setup: of its engine, and with a batch that is free where more than one frame is wanted.

        Raises:
            ModelMissingError: it is not built, or it is another engine's and its weights do not ship.
        """
        name = setup.model
        if name not in self._models.names():
            raise ModelMissingError(
                f"model {name!r} is not built in {self._models.root}: run 'skylane model build {name}', "
                "then the study again"
            )
        manifest = self._models.manifest(name)
        if manifest.format == setup.engine and setup.batch == 1:
            return Variant(self._models.root, name)
        if name not in RECIPES or not RECIPES[name].trained:
            if manifest.format == setup.engine:  # The model's own batch may be free: the worker says if it is not.
                return Variant(self._models.root, name)
            raise ModelMissingError(
                f"model {name!r} is a {manifest.format}, not a {setup.engine}: set engine to {manifest.format} for it"
            )
        return self._build(name, setup)

    def _build(self, name: str, setup: WorkerSetup) -> Variant:
        batched = setup.batch > 1
        variant = Variant(self._built, f"{name}-{setup.engine}{'-batched' if batched else ''}")
        if (variant.root / variant.name / "model.yaml").is_file():  # Written last.
            return variant
        # A process of its own: TensorFlow would stay in this one, and in the way of what is measured.
        command = [sys.executable, "-m", "skylane", "model", "build", name]
        command += ["--format", setup.engine, "--name", variant.name, *(["--free-batch"] if batched else [])]
        command += ["--models", str(variant.root), "--weights-from", str(self._models.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise ModelMissingError(f"model {name!r} cannot be built as {setup.engine}: {said}")
        return variant
