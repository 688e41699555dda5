"""The model repository: a folder of models, each a folder with a `model.yaml`; found, checked and loaded by name."""

import os
from pathlib import Path

from cloud.engines.engine import ENGINES, Engine, Placement
from cloud.manifest import BatchingSection, Manifest
from cloud.model import BatchSizeError, Model
from shared import registry
from shared.config import ConfigError, read_yaml
from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.hashing import tree_sha256
from shared.labels import Labels, read_labels
from shared.model_card import ModelCard

MANIFEST_NAME = "model.yaml"
MODELS_VARIABLE = "SKYLANE_MODELS"  # The environment variable that names another repository.


class RepositoryError(SkylaneError):
    """The repository, or a model's file in it, cannot be used."""


class Repository:
    """The models in a folder. Nothing is loaded, and no engine's library imported, before `load`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> tuple[str, ...]:
        """The names of its models, sorted.

        Raises:
            RepositoryError: the folder is not there.
        """
        try:
            folders = sorted(self.root.iterdir())
        except OSError as error:
            raise RepositoryError(
                f"model repository {self.root} cannot be read ({error.strerror}): give --models or {MODELS_VARIABLE}"
            ) from error
        return tuple(folder.name for folder in folders if (folder / MANIFEST_NAME).is_file())

    def folder(self, name: str) -> Path:
        """A model's folder.

        Raises:
            UnknownNameError: there is no such model; the nearest names are offered.
        """
        names = self.names()
        if name not in names:
            raise UnknownNameError("model", name, names)
        return self.root / name

    def manifest(self, name: str) -> Manifest:
        """A model's manifest, checked.

        Raises:
            UnknownNameError: there is no such model.
            ConfigError: its manifest is wrong; names the file, the key and what to do.
        """
        path = self.folder(name) / MANIFEST_NAME
        manifest = read_yaml(path, Manifest)
        if manifest.name is not None and manifest.name != name:
            raise ConfigError(path, f"is {manifest.name!r}, but the folder is {name!r}: rename one", "name")
        if manifest.format not in ENGINES:
            raise ConfigError(path, f"no format {manifest.format!r}{suggestion(manifest.format, ENGINES)}", "format")
        return manifest

    def labels(self, name: str, manifest: Manifest) -> Labels:
        """A model's labels, from the manifest or from the file that it names.

        Raises:
            ConfigError, LabelsError: they are repeated, or the file is outside the repository or unreadable.
        """
        if manifest.labels_file is None:
            return Labels(
                tuple(label.name for label in manifest.labels), tuple(label.colour for label in manifest.labels)
            )
        path = self.folder(name) / manifest.labels_file
        if not path.resolve().is_relative_to(self.root.resolve()):
            problem = f"{manifest.labels_file!r} is outside the repository"
            raise ConfigError(self.folder(name) / MANIFEST_NAME, problem, "labels_file")
        return read_labels(path)

    def card(self, name: str) -> ModelCard:
        """What a vehicle must know of a model.

        Raises:
            As `manifest` and `labels`.
        """
        manifest = self.manifest(name)
        return ModelCard(
            name=name,
            version=manifest.version,
            sha256=manifest.sha256,
            task=manifest.task,
            height=manifest.input.height,
            width=manifest.input.width,
            layout=manifest.input.layout,
            resize=manifest.input.resize,
            labels=self.labels(name, manifest),
            trained=manifest.trained,
        )

    def file(self, name: str) -> Path:
        """A model's file, there and with the manifest's hash.

        Raises:
            RepositoryError: it is missing, leads outside the model's folder, or is another file than the manifest's.
        """
        manifest = self.manifest(name)
        folder = self.folder(name)
        path = folder / manifest.file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RepositoryError(f"{path} leads outside the model's folder: put the file into it")
        if not path.exists():
            raise RepositoryError(f"{path} is missing: build it with `skylane model build {name}`, or copy it there")
        try:
            found = tree_sha256(path)
        except OSError as error:
            raise RepositoryError(f"{path} cannot be read ({error.strerror})") from error
        if found != manifest.sha256:
            raise RepositoryError(
                f"{path} has SHA-256 {found[:12]}…, its manifest {manifest.sha256[:12]}…: "
                "it was changed or is incomplete; get it again, or write its manifest anew with `skylane model inspect`"
            )
        return path

    def load(self, name: str, placement: Placement = Placement(), max_batch: int | None = None) -> Model:  # noqa: B008 - frozen.
        """Check a model's file and open it on a device; warming it up is the caller's.

        `max_batch`: the most frames that go through it at once, instead of what its manifest says.

        Raises:
            SkylaneError: as `file` and `card`; MissingExtraError where the engine's library is not installed;
                EngineError where the file cannot be run as its manifest says; DeviceError where the device is not there;
                BatchSizeError where another batch than `max_batch` is baked into the graph.
        """
        manifest, card, path = self.manifest(name), self.card(name), self.file(name)
        if max_batch is not None:
            manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
        engine: Engine = registry.load("engine", ENGINES, manifest.format)(path, manifest, placement)
        if max_batch is not None and engine.batch_size not in (None, max_batch):
            engine.close()
            raise BatchSizeError(name, engine.batch_size, max_batch)
        return Model(manifest, card, engine)


def default_root() -> Path:
    """The repository where none is given: `SKYLANE_MODELS`, else `models/` here, else that of the checkout."""
    named = os.environ.get(MODELS_VARIABLE)
    if named:
        return Path(named)
    here = Path("models")
    return here if here.is_dir() else Path(__file__).resolve().parent.parent / "models"
