"""The models that a study's cells want: as they lie in the repository, or built for the study from the same weights."""

import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, rmtree

from bench.study.plan.axes import OWN_FORMAT
from bench.study.plan.cell import WorkerSetup
from cloud.engines.engine import ENGINES, Precision
from cloud.models.manifest import Manifest
from cloud.models.repository import Repository, default_root
from modelling.conversion.targets import TARGETS
from modelling.recipes import RECIPES, Format
from shared.errors import SkylaneError

_QUANTISED = (Precision.INT8, Precision.FP16)
_QUANTISED_FORMAT = "openvino"  # What `skylane model quantize` writes.
_BUILT = tuple(form.value for form in Format)  # What `skylane model build` writes; the others are converted to.


class ModelMissingError(SkylaneError):
    """A cell's model cannot be had."""


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """A model in a repository."""

    root: Path
    name: str


class ModelVariants:
    """Finds the models of cells, and builds those forms of a model that only the study wants."""

    def __init__(self, models: Path, built: Path) -> None:
        """`models`: the user's repository; `built`: a folder for what is built here."""
        self._models = Repository(models)
        self._built = built

    def check(self, setups: Iterable[WorkerSetup]) -> None:
        """See that the model of every setup is there.

        Raises:
            ModelMissingError: some are not; names them all, and the command that builds them.
        """
        root = self._models.root
        there = self._models.names() if self._models.exists else ()
        absent = sorted({setup.model for setup in setups}.difference(there))
        if absent:
            names = "model " if len(absent) == 1 else "models "
            names += ", ".join(map(repr, absent))
            elsewhere = () if root == default_root() else ("--models", shlex.quote(str(root)))
            raise ModelMissingError(
                f"{names} {'is' if len(absent) == 1 else 'are'} not built in {root}: run "
                f"'{' '.join(('skylane model build', *absent, *elsewhere))}', then the study again"
            )

    def find(self, setup: WorkerSetup) -> ModelVariant:
        """The model of a setup: one that its engine reads, with a batch that is free where more than one frame is wanted.

        Raises:
            ModelMissingError: it is not there, or has another form, its weights do not ship and it is not to be quantised.
        """
        name = setup.model
        self.check((setup,))
        manifest = self._models.manifest(name)
        form = _form(setup, manifest)
        is_as_wanted = manifest.format == form and not _needs_quantising(setup, manifest)
        ships = name in RECIPES and RECIPES[name].trained
        if is_as_wanted and (setup.batch == 1 or not ships):  # Its own batch may be free: the worker says if it is not.
            return ModelVariant(self._models.root, name)
        if ships and form in (*_BUILT, *TARGETS):
            form_built = form if form in _BUILT else Format.FROZEN_GRAPH.value
            source = self._built_as(name, form_built, is_batched=setup.batch > 1)
        elif _needs_quantising(setup, manifest) and manifest.precision == Precision.FP32:
            source = self._copied(name)
        else:
            raise ModelMissingError(
                f"model {name!r} is a {manifest.precision} {manifest.format}, not a {setup.precision} {form}: "
                "set engine, format and precision to what it is, or name a converted one as model"
            )
        return self._made(source, form, setup, manifest)

    def _copied(self, name: str) -> ModelVariant:
        """The user's own model beside what is made of it."""
        if not (self._built / name).exists():
            draft = self._built / f"{name}.part"
            rmtree(draft, ignore_errors=True)
            copytree(self._models.folder(name), draft)
            draft.rename(self._built / name)
        return ModelVariant(self._built, name)

    def _made(self, source: ModelVariant, form: str, setup: WorkerSetup, manifest: Manifest) -> ModelVariant:
        """The model in this form, from the same weights; made where it was not yet."""
        if _needs_quantising(setup, manifest):
            made = f"{source.name}-{setup.precision}"
            return self._written(made, ["quantize", source.name, "--precision", setup.precision, "--name", made])
        if form in _BUILT:
            return source
        made = f"{source.name}-{form}"
        return self._written(made, ["convert", source.name, "--to", form, "--name", made])

    def _built_as(self, name: str, form: str, *, is_batched: bool) -> ModelVariant:
        made = f"{name}-{form}{'-batched' if is_batched else ''}"
        flags = ["--format", form, "--weights-from", str(self._models.root), *(["--free-batch"] if is_batched else [])]
        return self._written(made, ["build", name, *flags, "--name", made])

    def _written(self, name: str, command: list[str]) -> ModelVariant:
        """The model that a command of `skylane model` writes; it is run where the model is not there yet."""
        variant = ModelVariant(self._built, name)
        if (variant.root / variant.name / "model.yaml").is_file():  # Written last.
            return variant
        # A process of its own: TensorFlow would stay in this one, and in the way of what is measured.
        whole = [sys.executable, "-P", "-m", "skylane", "model", *command, "--models", str(variant.root)]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise ModelMissingError(f"model {name!r} cannot be made: {said}")
        return variant


def _form(setup: WorkerSetup, manifest: Manifest) -> str:
    """The format that the setup's engine is to read."""
    readable = ENGINES[setup.engine].formats
    if setup.precision in _QUANTISED and _QUANTISED_FORMAT not in readable:
        raise ModelMissingError(
            f"engine {setup.engine} reads no quantised models, which are in the format {_QUANTISED_FORMAT}: set engine "
            "to openvino"
        )
    if setup.format == OWN_FORMAT:
        return manifest.format if manifest.format in readable else readable[0]
    if setup.format not in readable:
        raise ModelMissingError(f"engine {setup.engine} does not read {setup.format}: it reads {', '.join(readable)}")
    return setup.format


def _needs_quantising(setup: WorkerSetup, manifest: Manifest) -> bool:
    """Whether the precision is one of the file's numbers, which bf16 is not: that is only computed in."""
    return setup.precision in _QUANTISED and manifest.precision != setup.precision
