"""The model repository: finds, checks and loads models by name. Each model is a folder with a `model.yaml`."""

import os
import re
from dataclasses import replace
from pathlib import Path

from cloud.engines.engine import Engine
from cloud.engines.placement import Placement
from cloud.engines.table import AUTO, ENGINES, formats, readers
from cloud.isolation.engine import IsolatedEngine, IsolationLimits
from cloud.models.manifest import MANIFEST_NAME, BatchingSection, Manifest
from cloud.models.model import Model
from shared import registry
from shared.config import ConfigError, read_yaml
from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.hashing import tree_sha256
from shared.imaging.labels import Labels, read_labels
from shared.messages.model_card import VERSION_NAME, ModelCard, labels_of
from shared.package_data import shipped, user_models
from shared.tasks.task import task_named

MODELS_VARIABLE = "SKYLANE_MODELS"  # Environment variable with the path of another repository.

_VERSION = re.compile(VERSION_NAME)


class RepositoryError(SkylaneError):
    """The repository or a model file in it is missing or invalid."""


class Repository:
    """The models in a folder. No model is loaded and no engine imported before `load`.

    The user's default repository also includes the models in the package; a user's model hides one with the same name.
    """

    def __init__(self, root: Path) -> None:
        self.root = root  # The folder for new models.
        self._roots = dict.fromkeys((root, shipped("models")) if root == user_models() else (root,))
        self._cache: dict[Path, tuple[tuple[int, ...], Manifest]] = {}  # Cache: state of the file and its manifest.

    def __str__(self) -> str:
        return " and ".join(map(str, self._roots))

    @property
    def exists(self) -> bool:
        """True if the folder exists."""
        return any(root.is_dir() for root in self._roots)

    def root_of(self, name: str) -> Path:
        """Returns the folder that contains a model's folder, or would contain a new one."""
        return next((root for root in self._roots if _is_model(root / name)), self.root)

    def names(self) -> tuple[str, ...]:
        """Returns the names of the models, sorted.

        Raises:
            RepositoryError: the folder is unreadable.
        """
        try:
            roots = [root for root in self._roots if root.is_dir()] or [self.root]
            folders = [folder for root in roots for folder in root.iterdir()]
        except OSError as error:
            raise RepositoryError(
                f"model repository {error.filename} cannot be read ({error.strerror}): give --models or {MODELS_VARIABLE}"
            ) from error
        return tuple(sorted({folder.name for folder in folders if _is_model(folder)}))

    def versions(self, name: str) -> tuple[str, ...]:
        """Returns the versions of a model; the last one is the default.

        A model with a single version has its manifest in its folder, otherwise each version has a sub-folder.

        Raises:
            UnknownNameError: the model does not exist; the message suggests similar names.
            RepositoryError: its folder is a link that leads outside the repository.
        """
        names = self.names()
        if name not in names:
            raise UnknownNameError("model", name, names, self._hint(name))
        root = self.root_of(name)
        _check_inside(root / name, root)
        if (root / name / MANIFEST_NAME).is_file():
            return (self._manifest(root / name / MANIFEST_NAME).version,)
        return tuple(folder.name for folder in _version_folders(root / name))

    def folder(self, name: str, version: str | None = None) -> Path:
        """Returns the folder of a version, by default the highest one.

        Raises:
            UnknownNameError: the model or version does not exist; the message suggests similar names.
        """
        versions = self.versions(name)
        if version is not None and version not in versions:
            raise UnknownNameError(f"version of model {name}", version, versions)
        root = self.root_of(name)
        folder = root / name
        folder = folder if (folder / MANIFEST_NAME).is_file() else folder / (version or versions[-1])
        _check_inside(folder, root)
        return folder

    def manifest(self, name: str, version: str | None = None) -> Manifest:
        """Returns the validated manifest of a version, by default the highest one.

        Raises:
            UnknownNameError: the model or version does not exist.
            ConfigError: the manifest is invalid; the message has the file, the key and a remedy.
        """
        folder = self.folder(name, version)
        path = folder / MANIFEST_NAME
        manifest = self._manifest(path)
        if folder.name != name:
            manifest = manifest.model_copy(update={"version": folder.name})  # The name of the folder is the version.
        if manifest.name is not None and manifest.name != name:
            raise ConfigError(path, f"is {manifest.name!r}, but the folder is {name!r}: rename one", "name")
        if manifest.format not in formats():
            raise ConfigError(
                path, f"unknown format {manifest.format!r}{suggestion(manifest.format, formats())}", "format"
            )
        if manifest.engine not in (None, AUTO):
            try:
                engine_of(manifest.format, manifest.engine)
            except SkylaneError as error:
                raise ConfigError(path, str(error), "engine") from error
        return manifest

    def labels(self, name: str, manifest: Manifest, version: str | None = None) -> Labels:
        """Returns the labels of a model, from its manifest or from its label file.

        Raises:
            LabelsError: they are repeated or too many for a mask, or the file is unreadable.
            ConfigError: the file is outside the repository.
        """
        if manifest.labels_file is None:
            names = tuple(label.name for label in manifest.labels)
            return labels_of(manifest.task, Labels(names, tuple(label.colour for label in manifest.labels)))
        folder = self.folder(name, version)
        path = folder / manifest.labels_file
        if not path.resolve().is_relative_to(self.root_of(name).resolve()):
            problem = f"{manifest.labels_file!r} is outside the repository"
            raise ConfigError(folder / MANIFEST_NAME, problem, "labels_file")
        return labels_of(manifest.task, read_labels(path))

    def card(self, name: str, version: str | None = None) -> ModelCard:
        """Returns the card of a model, which vehicles receive.

        Raises:
            SkylaneError: see `manifest` and `labels`.
        """
        manifest = self.manifest(name, version)
        return ModelCard(
            name=name,
            version=manifest.version,
            sha256=manifest.sha256,
            task=manifest.task,
            height=manifest.input.height,
            width=manifest.input.width,
            layout=manifest.input.layout,
            resize=manifest.input.resize,
            labels=self.labels(name, manifest, version),
            trained=manifest.trained,
            outputs=tuple(manifest.heads) if not task_named(manifest.task).heads else (),
        )

    def file(self, name: str, version: str | None = None) -> Path:
        """Returns the path of the model file after checking its hash; for a remote model, the manifest.

        Raises:
            RepositoryError: it is missing, leads outside the model's folder, or has another hash than in the manifest.
        """
        manifest = self.manifest(name, version)
        folder = self.folder(name, version)
        path = folder / manifest.file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RepositoryError(f"{path} leads outside the model's folder: put the file into it")
        if not path.exists():
            raise RepositoryError(f"{path} is missing: build it with `skylane model build {name}`, or copy it there")
        _check_hash(path, manifest)
        return path

    def load(
        self,
        name: str,
        placement: Placement = Placement(),  # noqa: B008 - frozen.
        max_batch: int | None = None,
        *,
        version: str | None = None,
        engine: str | None = None,
        isolated: bool = False,
        limits: IsolationLimits = IsolationLimits(),  # noqa: B008 - frozen.
    ) -> Model:
        """Checks the file of a model and opens it on a device, without warm-up.

        Args:
            name: The model.
            placement: The device and its settings.
            max_batch: The largest batch, instead of the manifest's.
            version: The version, by default the highest one.
            engine: The engine, instead of the manifest's. `auto` selects the fastest one, see
                `cloud.models.engine_selection`, and may load a converted model under this name.
            isolated: Whether the engine runs in a separate process; ignored for remote models.
            limits: Limits of that process.

        Raises:
            MissingExtraError: the library of the engine is not installed.
            EngineError: the file cannot be run as the manifest describes.
            DeviceError: the device does not exist.
            SkylaneError: see `file` and `card`.
        """
        manifest, card, path = self.manifest(name, version), self.card(name, version), self.file(name, version)
        if max_batch is not None:
            manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
        if (engine or manifest.engine) == AUTO:
            from cloud.models.engine_selection import select_engine  # noqa: PLC0415  That module calls this method.

            choice = select_engine(self, name, version, placement)
            model = self.load(
                choice.model,
                replace(placement, precision=choice.precision),
                max_batch,
                version=choice.version,
                engine=choice.engine,
                isolated=isolated,
                limits=limits,
            )
            model.set_identity(card.name, card.version, str(choice))
            return model
        manifest = manifest.with_labels(card.labels)  # The warm-up checks the classes against the labels.
        chosen = engine_of(manifest.format, engine or manifest.engine)
        opened: Engine
        if isolated and manifest.remote is None:
            opened = IsolatedEngine(path, manifest, placement, engine=chosen, limits=limits)
        else:
            opened = registry.load("engine", ENGINES, chosen)(path, manifest, placement)
        try:
            _check_hash(path, manifest)  # The file may have been replaced while it was being opened.
        except RepositoryError:
            opened.close()
            raise
        return Model(manifest, card, opened)

    def _manifest(self, path: Path) -> Manifest:
        """Reads a manifest, or returns the cached one if the file is unchanged; 1000 labels take half a second to parse."""
        try:
            stat = path.stat()
        except OSError:
            return read_yaml(path, Manifest)  # Raises an error with the reason.
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if path in self._cache and self._cache[path][0] == state:
            return self._cache[path][1]
        manifest = read_yaml(path, Manifest)
        self._cache[path] = (state, manifest)
        return manifest

    def _hint(self, name: str) -> str:
        """A hint for an unknown model; `./models` is not searched by default."""
        here = Path("models")
        build = f" in {self}: run 'skylane model build {name}', or give --models" if not self.names() else ""
        if not here.is_dir() or here.resolve() in {root.resolve() for root in self._roots}:
            return build
        return (
            "; ./models has a model of that name: give --models ./models" if name in Repository(here).names() else build
        )


def engine_of(form: str, engine: str | None) -> str:
    """Returns the requested engine, by default that of the format.

    Raises:
        UnknownNameError: the engine does not exist.
        RepositoryError: it does not read the format; the message lists engines that do.
    """
    if engine is None:
        return readers(form)[0]
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if form not in ENGINES[engine].formats:
        others = ", ".join(readers(form))
        raise RepositoryError(f"engine {engine!r} does not read {form}: use {others}, or convert the model")
    return engine


def _check_inside(folder: Path, root: Path) -> None:
    if not folder.resolve().is_relative_to(root.resolve()):
        raise RepositoryError(f"{folder} leads outside the repository: copy the model into it")


def _check_hash(path: Path, manifest: Manifest) -> None:
    if manifest.remote is not None:
        return  # Its engine checks the hash.
    try:
        found = tree_sha256(path)
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read ({error.strerror})") from error
    if found != manifest.sha256:
        raise RepositoryError(
            f"{path} has SHA-256 {found[:12]}…, its manifest {manifest.sha256[:12]}…: "
            "it was changed or is incomplete; get it again, or rewrite its manifest with `skylane model inspect`"
        )


def version_rank(version: str) -> tuple[bool, tuple[int, ...], str]:
    """Returns the sort key of a version: dotted numbers by their value, after all other names."""
    parts = version.split(".")
    is_number = all(part.isdecimal() for part in parts)
    return (is_number, tuple(map(int, parts)) if is_number else (), version)


def _is_model(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).is_file() or bool(_version_folders(folder))


def _version_folders(folder: Path) -> list[Path]:
    """Returns the folders of the versions, sorted by `version_rank`."""
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if _VERSION.fullmatch(each.name) and (each / MANIFEST_NAME).is_file()]
    return sorted(found, key=lambda each: version_rank(each.name))


def default_root() -> Path:
    """Returns the default repository: `SKYLANE_MODELS`, otherwise the user's."""
    configured = os.environ.get(MODELS_VARIABLE)
    return Path(configured) if configured else user_models()
