"""The catalogue of networks and recordings to fetch: `configs/catalogue.yaml`, or a file of that form."""

from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

import click
from pydantic import AfterValidator, Field, model_validator
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from shared.config import Section, parsed_by, read_yaml
from shared.errors import SkylaneError, UnknownNameError
from shared.files import file_sha256
from shared.messages.topics import NAME
from shared.models.manifest import Manifest
from shared.network.download import DownloadError, RemoteFile
from shared.package_data import shipped
from shared.quiet import progress_console
from shared.sanitize import printable

CATALOGUE = click.option(
    "--catalogue",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=lambda _context, _option, path: Catalogue.read(path),
    help="Catalogue with other addresses, such as those of a mirror. [the one that ships with Skylane]",
)
MODEL_FORMATS = {".tflite": "tflite", ".onnx": "onnx"}  # Formats of one file that run no code, by suffix.
_RECORDINGS = (".bag", ".db3", ".mcap", ".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".ts")
_MAX_BYTES = 1 << 34


def check_format(url: str, suffixes: Collection[str]) -> str:
    """Returns the suffix of a file that is fetched; raises a SkylaneError for a suffix that is not supported."""
    suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    if suffix not in suffixes:
        raise SkylaneError(
            f"{url} does not end in {' or '.join(suffixes)}: other formats can run code, or are several files; "
            "download it yourself if you trust it"
        )
    return suffix


def _address(suffixes: Collection[str]) -> AfterValidator:
    def checked(url: str) -> str:
        check_format(RemoteFile(url, _MAX_BYTES).url, suffixes)
        return url

    return parsed_by(checked)


_Words = Annotated[str, parsed_by(printable)]
_EntryName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class ListedFile(Section):
    """A file to fetch: its address and its known properties."""

    url: Annotated[str, _address(_RECORDINGS)]
    size: int = Field(ge=1, le=_MAX_BYTES)  # Bytes.
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    licence: _Words = Field(min_length=1)
    description: _Words = ""

    @property
    def cells(self) -> tuple[Text, str, Text]:
        """The cells of a table: description, size in 10⁶ bytes, and licence."""
        return Text(self.description), f"{self.size / 1e6:.1f}", Text(self.licence)

    def fetch(self, name: str, target: Path) -> None:
        """Downloads to `target` with a progress bar on standard error, unless the file is there already.

        Raises:
            SkylaneError: another file is there, or it cannot be downloaded; the message says where to put it by hand.
        """
        if is_there(target, self.sha256):
            return
        try:
            download(name, RemoteFile(self.url, self.size, self.size, self.sha256), target)
        except DownloadError as error:
            raise SkylaneError(
                f"{error}. Or get that file elsewhere, put it at {target}, and run this again"
            ) from error


class ListedModel(ListedFile):
    """A network in one file of a format that runs no code, and its manifest."""

    url: Annotated[str, _address(MODEL_FORMATS)]
    trained_on: _Words = ""  # The data of its training, and their terms.
    labels: str  # A label set that ships with Skylane.
    manifest: Manifest  # The file omits its keys that the other entries determine.

    @model_validator(mode="before")
    @classmethod
    def _complete_manifest(cls, given: Any) -> Any:
        """Adds these keys to the manifest."""
        if not isinstance(given, dict) or not isinstance(given.get("manifest"), dict):
            return given
        known = {
            "description": given.get("description", ""),
            "trained_on": given.get("trained_on", ""),
            "labels_file": given.get("labels"),
            **given["manifest"],
            "file": PurePosixPath(urlsplit(str(given.get("url"))).path).name,
            "sha256": given.get("sha256"),
        }
        return {**given, "manifest": known}

    @model_validator(mode="after")
    def _format_fits_url(self) -> Self:
        expected = MODEL_FORMATS[check_format(self.url, MODEL_FORMATS)]
        if self.manifest.format != expected:
            raise ValueError(f"manifest.format is {self.manifest.format!r}, and the file behind the url is {expected}")
        return self


class Catalogue(Section):
    """All entries by name."""

    models: dict[_EntryName, ListedModel] = Field(default_factory=dict)
    bags: dict[_EntryName, ListedFile] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Self:
        """Reads a file, by default the shipped one; raises a ConfigError."""
        return read_yaml(path or shipped("configs") / "catalogue.yaml", cls)

    def model(self, name: str) -> ListedModel:
        """Returns a network; raises an UnknownNameError."""
        if name not in self.models:
            raise UnknownNameError("network in the catalogue", name, self.models)
        return self.models[name]

    def bag(self, name: str) -> ListedFile:
        """Returns a recording; raises an UnknownNameError."""
        if name not in self.bags:
            raise UnknownNameError("recording in the catalogue", name, self.bags)
        return self.bags[name]


def fetch_recording(catalogue: Catalogue, name: str, folder: Path) -> Path:
    """Returns a recording of the catalogue in `folder`, which is downloaded if it is not there.

    Raises:
        SkylaneError: the catalogue has no such recording, it cannot be downloaded, or another file has its place.
    """
    entry = catalogue.bag(name)
    target = folder / f"{name}{check_format(entry.url, _RECORDINGS)}"
    entry.fetch(name, target)
    return target


def download(name: str, remote: RemoteFile, target: Path) -> str:
    """Downloads with a progress bar on standard error; returns the SHA-256. See `RemoteFile.fetch`."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(), transient=True) as progress:
        task = progress.add_task(name, total=remote.size)
        return remote.fetch(target, lambda done, total: progress.update(task, completed=done, total=total))


def is_there(target: Path, sha256: str) -> bool:
    """Returns whether a file exists; raises a SkylaneError if its hash is another, or it cannot be read."""
    if not target.exists():
        return False
    try:
        found = file_sha256(target)
    except OSError as error:
        raise SkylaneError(f"{target} cannot be read: {error.strerror}") from error
    if found != sha256:
        raise SkylaneError(
            f"{target} exists and has SHA-256 {found}, not {sha256}: move it away, or choose another name"
        )
    return True
