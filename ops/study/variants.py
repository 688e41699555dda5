"""Provides the models of a study: from the repository, or built, converted or quantised from the same weights."""

import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, rmtree

from analysis.study.axes import OWN_FORMAT
from analysis.study.study_plan import WorkerSetup
from cloud.models.loader import ModelLoader
from modelling.conversion.derived_model import TARGETS
from modelling.recipes import RECIPES, Format
from shared.errors import SkylaneError
from shared.inference.model import open_local
from shared.inference.table import ENGINES, choose_engine, readers
from shared.models.manifest import MANIFEST_NAME, Manifest, Placement, Precision
from shared.models.repository import Repository, default_root
from shared.registry import load

_QUANTISED = (Precision.INT8, Precision.FP16)
_QUANTISED_FORMAT = "openvino"  # Output format of `skylane model quantize`.
_BUILT = tuple(form.value for form in Format)  # Output formats of `skylane model build`.


class ModelMissingError(SkylaneError):
    """A model of a cell does not exist and cannot be made."""


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A model in a repository."""

    root: Path
    name: str


class ModelVariants:
    """Finds the models of cells and makes missing formats and precisions."""

    def __init__(self, models: Path, built: Path, *, makes_missing: bool = True) -> None:
        """`models` is the user's repository; `built` is the folder for models made here.

        Without `makes_missing`, nothing is made, and `find` returns where a missing model would be.
        """
        self._models = Repository(models)
        self._built = built
        self._makes_missing = makes_missing

    @property
    def root(self) -> Path:
        """The user's repository, from which vehicles load their local models."""
        return self._models.root

    def check(self, setups: Iterable[WorkerSetup], local_models: Iterable[str] = ()) -> None:
        """Checks that the model of every setup, and the local models of the vehicles, are in the repository.

        Raises:
            ModelMissingError: Models are missing; the message names all of them and the command that builds them.
        """
        root = self._models.root
        existing = self._models.names() if self._models.exists else ()
        missing = sorted({*(setup.model for setup in setups), *local_models}.difference(existing))
        if missing:
            names = "model " if len(missing) == 1 else "models "
            names += ", ".join(map(repr, missing))
            root_flags = () if root == default_root() else ("--models", shlex.quote(str(root)))
            raise ModelMissingError(
                f"{names} {'is' if len(missing) == 1 else 'are'} not built in {root}: run "
                f"'{' '.join(('skylane model build', *missing, *root_flags))}', then the study again"
            )

    def find(self, setup: WorkerSetup) -> ModelVariant:
        """Returns a model that the engine of the setup can read, and makes it if necessary.

        If `batch` is above 1, a trained model of `modelling.recipes` is made with a variable batch size.

        Raises:
            ModelMissingError: The model is missing, has another format or precision and cannot be converted, or making it
                failed.
        """
        name = setup.model
        self.check((setup,))
        manifest = self._models.find(name).manifest
        form = _format(setup, self.engine(setup), manifest)
        is_suitable = manifest.format == form and not _needs_quantising(setup, manifest)
        has_weights = name in RECIPES and RECIPES[name].trained and RECIPES[name].keeps_weights
        if is_suitable and (setup.batch == 1 or not has_weights):  # The worker reports a model with a fixed batch size.
            return ModelVariant(self._models.root, name)
        if has_weights and form in (*_BUILT, *TARGETS):
            build_format = form if form in _BUILT else Format.FROZEN_GRAPH.value
            source = self._build(name, build_format, is_batched=setup.batch > 1)
        elif _needs_quantising(setup, manifest) and manifest.precision == Precision.FP32:
            source = self._copy(name)
        else:
            wanted = f"{setup.precision or manifest.precision} {form}"
            raise ModelMissingError(
                f"model {name!r} is {manifest.precision} {manifest.format}, from which no {wanted} can be made: leave out "
                "engine, format and precision, or set them to match it, or name a converted model"
            )
        return self._convert(source, form, setup, manifest)

    def engine(self, setup: WorkerSetup) -> str | None:
        """Returns the engine of a setup, or that of its model if it reads the format; None for the default of the format."""
        manifest = self._models.find(setup.model).manifest
        form = manifest.format if setup.format == OWN_FORMAT else setup.format
        return setup.engine or (manifest.engine if manifest.engine in readers(form) else None)

    def try_open(self, setup: WorkerSetup, local_model: str | None = None) -> str:
        """Opens the models of a cell as its workers and vehicles do; returns the engine and precision of the workers.

        Of a model that is not made yet, only the engine's library is loaded.

        Raises:
            SkylaneError: A worker or a vehicle could not start.
        """
        if local_model is not None:
            open_local(self._models.find(local_model), Placement()).close()
        variant, engine = self.find(setup), self.engine(setup)
        precision = None if setup.precision is None else Precision(setup.precision)
        if not (variant.root / variant.name / MANIFEST_NAME).is_file():
            manifest = self._models.find(setup.model).manifest
            engine = choose_engine(ENGINES, _format(setup, engine, manifest), engine)
            load("engine", ENGINES, engine)
            return f"{engine} {precision or Precision.FP32}"
        placement = Placement(device=setup.device, precision=precision)
        with ModelLoader(Repository(variant.root), placement, engine=engine).open(variant.name) as model:
            return f"{model.engine_name} {model.precision}"

    def _copy(self, name: str) -> ModelVariant:
        """Copies the user's model, because the commands write their results into the same repository."""
        if self._makes_missing and not (self._built / name).exists():
            draft = self._built / f"{name}.part"
            rmtree(draft, ignore_errors=True)
            copytree(self._models.find(name).folder, draft)
            draft.rename(self._built / name)
        return ModelVariant(self._built, name)

    def _convert(self, source: ModelVariant, form: str, setup: WorkerSetup, manifest: Manifest) -> ModelVariant:
        if _needs_quantising(setup, manifest):
            name = f"{source.name}-{setup.precision}"
            return self._make(name, ["quantize", source.name, f"--precision={setup.precision}", "--name", name])
        if form in _BUILT:
            return source
        name = f"{source.name}-{form}"
        return self._make(name, ["convert", source.name, "--to", form, "--name", name])

    def _build(self, model: str, form: str, *, is_batched: bool) -> ModelVariant:
        name = f"{model}-{form}{'-batched' if is_batched else ''}"
        flags = ["--format", form, "--weights-from", str(self._models.root), *(["--free-batch"] if is_batched else [])]
        return self._make(name, ["build", model, *flags, "--name", name])

    def _make(self, name: str, command: list[str]) -> ModelVariant:
        """Runs a command of `skylane model` unless the model exists."""
        variant = ModelVariant(self._built, name)
        # The command writes the manifest last.
        if not self._makes_missing or (variant.root / variant.name / MANIFEST_NAME).is_file():
            return variant
        # A separate process, because TensorFlow would keep memory and threads in this one during the measurements.
        arguments = [sys.executable, "-P", "-m", "skylane", "model", *command, "--models", str(variant.root)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or "no error message").splitlines()[-1]
            raise ModelMissingError(f"model {name!r} cannot be made: {reason}")
        return variant


def _format(setup: WorkerSetup, engine: str | None, manifest: Manifest) -> str:
    """Returns the format that the workers shall load; `engine` is None for the default of the format."""
    form = manifest.format if setup.format == OWN_FORMAT else setup.format
    chosen = engine or choose_engine(ENGINES, form, None)
    readable = ENGINES[chosen].formats
    if _needs_quantising(setup, manifest) and _QUANTISED_FORMAT not in readable:
        raise ModelMissingError(
            f"engine {chosen} cannot read quantised models, whose format is {_QUANTISED_FORMAT}: set engine to openvino"
        )
    if form not in readable and setup.format != OWN_FORMAT:
        raise ModelMissingError(f"engine {chosen} cannot read {form}: it reads {', '.join(readable)}")
    return form if form in readable else readable[0]


def _needs_quantising(setup: WorkerSetup, manifest: Manifest) -> bool:
    """Returns whether the weights must be converted; bf16 only affects computation and needs no conversion."""
    return setup.precision in _QUANTISED and manifest.precision != setup.precision
