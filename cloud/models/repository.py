"""The model repository: a folder of models, each a folder with a `model.yaml`; found, checked and loaded by name."""

import os
import re
from dataclasses import replace
from pathlib import Path

from cloud.engines.engine import AUTO, ENGINES, FORMATS, Engine, Placement
from cloud.isolation.engine import IsolatedEngine, Limits
from cloud.models.manifest import MANIFEST_NAME, BatchingSection, Manifest
from cloud.models.model import Model
from shared import registry
from shared.config import ConfigError, read_yaml
from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.hashing import tree_sha256
from shared.imaging.labels import Labels, read_labels
from shared.messages.model_card import VERSION_NAME, ModelCard, Task, labels_of
from shared.package_data import shipped, user_models

MODELS_VARIABLE = "SKYLANE_MODELS"  # The environment variable that names another repository.

_VERSION = re.compile(VERSION_NAME)


class RepositoryError(SkylaneError):
    """The repository, or a model's file in it, cannot be used."""


class Repository:
    """The models in a folder. Nothing is loaded, and no engine's library imported, before `load`.

    The user's own repository is read together with the shipped one; a model that both hold is the user's.
    """

    def __init__(self, root: Path) -> None:
        self.root = root  # New models are written here.
        self._roots = dict.fromkeys((root, shipped("models")) if root == user_models() else (root,))
        self._read: dict[Path, tuple[tuple[int, ...], Manifest]] = {}  # As the file was then.

    def __str__(self) -> str:
        return " and ".join(map(str, self._roots))

    @property
    def exists(self) -> bool:
        """Whether there is a folder to read models from."""
        return any(root.is_dir() for root in self._roots)

    def root_of(self, name: str) -> Path:
        """The folder that holds a model's folder; where there is no such model, the one it would be written to."""
        return next((root for root in self._roots if _is_model(root / name)), self.root)

    def names(self) -> tuple[str, ...]:
        """The names of its models, sorted.

        Raises:
            RepositoryError: the folder is not there.
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
        """A model's versions, the one that is meant where none is named last.

        A model of one version has its manifest in its own folder; of several, in a folder for each.

        Raises:
            UnknownNameError: there is no such model; the nearest names are offered.
            RepositoryError: its folder is a link to outside the repository.
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
        """The folder of a model's version; of its highest where none is named.

        Raises:
            UnknownNameError: there is no such model, or no such version; the nearest names are offered.
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
        """A manifest, checked.

        Raises:
            UnknownNameError: there is no such model, or no such version.
            ConfigError: its manifest is wrong; names the file, the key and what to do.
        """
        folder = self.folder(name, version)
        path = folder / MANIFEST_NAME
        manifest = self._manifest(path)
        if folder.name != name:
            manifest = manifest.model_copy(update={"version": folder.name})  # The folder's name is the version.
        if manifest.name is not None and manifest.name != name:
            raise ConfigError(path, f"is {manifest.name!r}, but the folder is {name!r}: rename one", "name")
        if manifest.format not in FORMATS:
            raise ConfigError(path, f"no format {manifest.format!r}{suggestion(manifest.format, FORMATS)}", "format")
        if manifest.engine not in (None, AUTO):
            try:
                engine_of(manifest.format, manifest.engine)
            except SkylaneError as error:
                raise ConfigError(path, str(error), "engine") from error
        return manifest

    def labels(self, name: str, manifest: Manifest, version: str | None = None) -> Labels:
        """A model's labels, from the manifest or from the file that it names.

        Raises:
            ConfigError, LabelsError: they are repeated or too many for a mask, or the file is outside the repository or
                unreadable.
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
        """What a vehicle must know of a model.

        Raises:
            As `manifest` and `labels`.
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
            outputs=tuple(manifest.heads) if manifest.task is Task.TENSORS else (),
        )

    def file(self, name: str, version: str | None = None) -> Path:
        """A model's file, there and with the manifest's hash; of a remote model the manifest itself.

        Raises:
            RepositoryError: it is missing, leads outside the model's folder, or is another file than the manifest's.
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
        limits: Limits = Limits(),  # noqa: B008 - frozen.
    ) -> Model:
        """Check a model's file and open it on a device; warming it up is the caller's.

        `max_batch`: the most frames that go through it at once, instead of what its manifest says. `engine`: what runs
        it, instead of what its manifest says; `auto` measures on first use (`cloud.models.engine_selection`), and may take a model that was
        converted from this one, under this one's name. `isolated`: in a process of its own,
        within `limits`, unless it is on another server.

        Raises:
            SkylaneError: as `file` and `card`; MissingExtraError where the engine's library is not installed;
                EngineError where the file cannot be run as its manifest says; DeviceError where the device is not there.
        """
        manifest, card, path = self.manifest(name, version), self.card(name, version), self.file(name, version)
        if max_batch is not None:
            manifest = manifest.model_copy(update={"batching": BatchingSection(max_size=max_batch)})
        if (engine or manifest.engine) == AUTO:
            from cloud.models.engine_selection import choose  # noqa: PLC0415  It loads models, by this.

            choice = choose(self, name, version, placement)
            where = replace(placement, precision=choice.precision)
            taken = self.load(
                choice.model,
                where,
                max_batch,
                version=choice.version,
                engine=choice.engine,
                isolated=isolated,
                limits=limits,
            )
            taken.set_identity(card.name, card.version, str(choice))
            return taken
        manifest = manifest.with_labels(card.labels)  # Those of a file count against the model's classes as well.
        chosen = engine_of(manifest.format, engine or manifest.engine)
        opened: Engine
        if isolated and manifest.remote is None:  # Which is in another process as it is.
            opened = IsolatedEngine(path, manifest, placement, engine=chosen, limits=limits)
        else:
            opened = registry.load("engine", ENGINES, chosen)(path, manifest, placement)
        try:
            _check_hash(path, manifest)  # Opening takes seconds, in which somebody may put another file there.
        except RepositoryError:
            opened.close()
            raise
        return Model(manifest, card, opened)

    def _manifest(self, path: Path) -> Manifest:
        """A manifest's file, read anew where it was changed: one of a thousand labels takes half a second."""
        try:
            stat = path.stat()
        except OSError:
            return read_yaml(path, Manifest)  # Which tells what is wrong.
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if path in self._read and self._read[path][0] == state:
            return self._read[path][1]
        manifest = read_yaml(path, Manifest)
        self._read[path] = (state, manifest)
        return manifest

    def _hint(self, name: str) -> str:
        """What to add to the error for a model that is not here; `./models` is read only where it is asked for."""
        here = Path("models")
        build = f" in {self}: run 'skylane model build {name}', or give --models" if not self.names() else ""
        if not here.is_dir() or here.resolve() in {root.resolve() for root in self._roots}:
            return build
        return "; ./models has one of that name: give --models ./models" if name in Repository(here).names() else build


def engine_of(form: str, engine: str | None) -> str:
    """The engine that runs a format: the one asked for, else the format's own.

    Raises:
        UnknownNameError: there is no such engine.
        RepositoryError: it does not read the format; names what does.
    """
    if engine is None:
        return FORMATS[form]
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if form not in ENGINES[engine].formats:
        readers = ", ".join(name for name, entry in ENGINES.items() if form in entry.formats)
        raise RepositoryError(f"engine {engine!r} does not read {form}: use {readers}, or convert the model")
    return engine


def _check_inside(folder: Path, root: Path) -> None:
    if not folder.resolve().is_relative_to(root.resolve()):
        raise RepositoryError(f"{folder} leads outside the repository: copy the model into it")


def _check_hash(path: Path, manifest: Manifest) -> None:
    if manifest.remote is not None:
        return  # Its engine asks the server.
    try:
        found = tree_sha256(path)
    except OSError as error:
        raise RepositoryError(f"{path} cannot be read ({error.strerror})") from error
    if found != manifest.sha256:
        raise RepositoryError(
            f"{path} has SHA-256 {found[:12]}…, its manifest {manifest.sha256[:12]}…: "
            "it was changed or is incomplete; get it again, or write its manifest anew with `skylane model inspect`"
        )


def version_rank(version: str) -> tuple[bool, tuple[int, ...], str]:
    """What versions are sorted by: numbers, with dots or without, by their values, after names that are none."""
    parts = version.split(".")
    is_number = all(part.isdecimal() for part in parts)
    return (is_number, tuple(map(int, parts)) if is_number else (), version)


def _is_model(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).is_file() or bool(_version_folders(folder))


def _version_folders(folder: Path) -> list[Path]:
    """The versions in a model's folder, the highest number last; names that are no numbers come first."""
    if not folder.is_dir():
        return []
    found = [each for each in folder.iterdir() if _VERSION.fullmatch(each.name) and (each / MANIFEST_NAME).is_file()]
    return sorted(found, key=lambda each: version_rank(each.name))


def default_root() -> Path:
    """The repository where none is given: `SKYLANE_MODELS`, else the user's own."""
    named = os.environ.get(MODELS_VARIABLE)
    return Path(named) if named else user_models()
