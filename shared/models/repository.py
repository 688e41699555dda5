"""The model repository: finds and checks models by name. Each model is a folder with a `model.yaml`."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shared.config import ConfigError, read_yaml
from shared.errors import SkylaneError, UnknownNameError
from shared.files import resolved, tree_sha256
from shared.imaging.labels import Labels, read_labels
from shared.messages.model_card import ModelCard, labels_of
from shared.messages.msgpack_reader import VERSION_NAME
from shared.models.manifest import MANIFEST_NAME, Manifest
from shared.package_data import shipped, user_models
from shared.task import task_named

MODELS_VARIABLE = "SKYLANE_MODELS"  # Environment variable with the path of another repository.

_VERSION = re.compile(VERSION_NAME)


class ModelFileError(SkylaneError):
    """The file of a model cannot be used; `cause` is the message without the remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        self.cause = cause
        super().__init__(f"{cause}: {remedy}")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A version of a model in the repository, with its validated manifest."""

    name: str
    folder: Path
    root: Path  # The folder of the repository, which contains the label file too.
    manifest: Manifest = field(compare=False, repr=False)

    @property
    def version(self) -> str:
        """The version."""
        return self.manifest.version

    def labels(self) -> Labels:
        """Returns the labels, from the manifest or from the label file.

        Raises:
            LabelsError: they are repeated or too many for a mask, or the file is unreadable.
            ConfigError: the file is outside the repository.
        """
        manifest = self.manifest
        if manifest.labels_file is None:
            names = tuple(label.name for label in manifest.labels)
            return labels_of(manifest.task, Labels(names, tuple(label.colour for label in manifest.labels)))
        path = self.folder / manifest.labels_file
        if not resolved(path).is_relative_to(resolved(self.root)):
            problem = f"{manifest.labels_file!r} is outside the repository"
            raise ConfigError(self.folder / MANIFEST_NAME, problem, "labels_file")
        return labels_of(manifest.task, read_labels(path))

    def card(self) -> ModelCard:
        """Returns the card, which vehicles receive.

        Raises:
            SkylaneError: see `labels`.
        """
        manifest = self.manifest
        return ModelCard(
            name=self.name,
            version=manifest.version,
            sha256=manifest.sha256,
            task=manifest.task,
            height=manifest.input.height,
            width=manifest.input.width,
            layout=manifest.input.layout,
            resize=manifest.input.resize,
            labels=self.labels(),
            trained=manifest.trained,
            trained_on=manifest.trained_on,
            outputs=tuple(manifest.heads) if not task_named(manifest.task).heads else (),
        )

    def file(self) -> Path:
        """Returns the path of the model file after checking its hash; for a remote model, the manifest.

        Raises:
            SkylaneError: it is missing, leads outside the model's folder, or has another hash than in the manifest.
        """
        path = self.folder / self.manifest.file
        if not resolved(path).is_relative_to(resolved(self.folder)):
            raise SkylaneError(f"{path} leads outside the model's folder: put the file into it")
        if not os.path.lexists(path):
            raise ModelFileError(
                f"{path} is missing", f"build it with `skylane model build {self.name}`, or copy it there"
            )
        self.check_hash(path)
        return path

    def check_hash(self, path: Path) -> None:
        """Compares the hash of the model file `path` with the manifest's.

        Raises:
            SkylaneError: the file is unreadable, or has another hash.
        """
        manifest = self.manifest
        if manifest.remote is not None:
            return  # Its engine checks the hash.
        try:
            found = tree_sha256(path)
        except OSError as error:
            raise SkylaneError(f"{error.filename} cannot be read ({error.strerror})") from error
        if found != manifest.sha256:
            raise ModelFileError(
                f"{path} has SHA-256 {found[:12]}…, its manifest {manifest.sha256[:12]}…",
                "it was changed or is incomplete; get it again, or rewrite its manifest with `skylane model inspect`",
            )


class Repository:
    """The models in a folder.

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
        """True if its folder exists, or one of both."""
        return any(root.is_dir() for root in self._roots)

    def root_of(self, name: str) -> Path:
        """Returns the folder that contains a model's folder, or would contain a new one."""
        return next((root for root in self._roots if _is_model(root / name)), self.root)

    def names(self) -> tuple[str, ...]:
        """Returns the names of the models, sorted.

        Raises:
            SkylaneError: the folder is missing or unreadable.
        """
        try:
            roots = [root for root in self._roots if root.is_dir()] or [self.root]
            folders = [folder for root in roots for folder in root.iterdir()]
        except OSError as error:
            raise SkylaneError(
                f"model repository {error.filename} cannot be read ({error.strerror}): give --models or {MODELS_VARIABLE}"
            ) from error
        return tuple(sorted({folder.name for folder in folders if _is_model(folder)}))

    def versions(self, name: str) -> tuple[str, ...]:
        """Returns the versions of a model; the last one is the default.

        A model with a single version has its manifest in its folder, otherwise each version has a sub-folder.

        Raises:
            UnknownNameError: the model does not exist; the message suggests similar names.
            SkylaneError: its folder is a link that leads outside the repository.
        """
        names = self.names()
        if name not in names:
            raise UnknownNameError("model", name, names, self._hint(name))
        root = self.root_of(name)
        _check_inside(root / name, root)
        try:
            if (root / name / MANIFEST_NAME).is_file():
                return (self._manifest(root / name / MANIFEST_NAME).version,)
            return tuple(folder.name for folder in _version_folders(root / name))
        except OSError as error:
            raise SkylaneError(f"{error.filename} cannot be read ({error.strerror}): make it readable") from error

    def find(self, name: str, version: str | None = None) -> StoredModel:
        """Returns a version of a model, by default the highest one.

        Raises:
            UnknownNameError: the model or version does not exist; the message suggests similar names.
            ConfigError: the manifest is invalid; the message has the file, the key and a remedy.
            SkylaneError: the folder is a link that leads outside the repository.
        """
        versions = self.versions(name)
        if version is not None and version not in versions:
            raise UnknownNameError(f"version of model {name}", version, versions)
        root = self.root_of(name)
        folder = root / name
        has_versions = not (folder / MANIFEST_NAME).is_file()
        if has_versions:
            folder /= version or versions[-1]
        _check_inside(folder, root)
        path = folder / MANIFEST_NAME
        manifest = self._manifest(path)
        if has_versions:
            manifest = manifest.model_copy(update={"version": folder.name})
        if manifest.name is not None and manifest.name != name:
            raise ConfigError(path, f"is {manifest.name!r}, but the folder is {name!r}: rename one", "name")
        return StoredModel(name, folder, root, manifest)

    def source(self, stored: StoredModel) -> StoredModel | None:
        """Returns the model from which `stored` was converted; None if the repository has no such file."""
        source = stored.manifest.converted_from
        if source is None or source.model not in self.names():
            return None
        return next((each for each in self._valid(source.model) if each.manifest.sha256 == source.sha256), None)

    def conversions(self, stored: StoredModel) -> Iterator[StoredModel]:
        """Yields all versions of other models that were converted from the file of `stored`."""
        for name in self.names():
            for each in self._valid(name) if name != stored.name else ():
                source = each.manifest.converted_from
                if source is not None and (source.model, source.sha256) == (stored.name, stored.manifest.sha256):
                    yield each

    def _valid(self, name: str) -> Iterator[StoredModel]:
        """Yields the versions of a model with valid manifests; `skylane model verify` reports the others."""
        with suppress(SkylaneError):  # The version of a model with a single version is in its manifest.
            for version in self.versions(name):
                with suppress(SkylaneError):
                    yield self.find(name, version)

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
        if not here.is_dir() or resolved(here) in map(resolved, self._roots):
            return build
        return (
            "; ./models has a model of that name: give --models ./models" if name in Repository(here).names() else build
        )


def _check_inside(folder: Path, root: Path) -> None:
    if not resolved(folder).is_relative_to(resolved(root)):
        raise SkylaneError(f"{folder} leads outside the repository: copy the model into it")


def version_rank(version: str) -> tuple[bool, tuple[int, ...], str]:
    """Returns the sort key of a version: dotted numbers by their value, after all other names."""
    parts = version.split(".")
    is_number = all(part.isdecimal() for part in parts)
    return (is_number, tuple(map(int, parts)) if is_number else (), version)


def _is_model(folder: Path) -> bool:
    try:
        return (folder / MANIFEST_NAME).is_file() or bool(_version_folders(folder))
    except OSError:
        return True  # The error is reported when this model is used, and does not hide the others.


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
