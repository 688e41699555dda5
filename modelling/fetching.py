"""`skylane model fetch`: gets a network from the catalogue, or from an address, and makes a model of the repository of it."""

import re
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from modelling.cli_options import LABELS, MODELS
from shared.catalogue import CATALOGUE, MODEL_FORMATS, Catalogue, check_format, download, is_there
from shared.errors import SkylaneError
from shared.files import write_file
from shared.flags import FiniteRange
from shared.imaging.labels import Labels, labels_from
from shared.messages.topics import validate_name
from shared.models.manifest import MANIFEST_NAME
from shared.models.repository import Repository
from shared.network.download import RemoteFile
from shared.terminal_table import result_table

_SHA256 = re.compile("[0-9a-f]{64}")


@click.command("fetch")
@click.argument("source", metavar="[NAME|URL]", required=False)
@click.option("--name", metavar="NAME", help="Name of the model; with a URL required. [as in the catalogue]")
@click.option("--sha256", help="Expected SHA-256 of the file behind a URL. [any; it is printed]")
@click.option(
    "--max-mb", type=FiniteRange(0, min_open=True), default=500.0, show_default=True, help="Largest file behind a URL."
)
@click.option("--labels", **LABELS)
@CATALOGUE
@MODELS
def fetch(
    source: str | None,
    *,
    name: str | None,
    sha256: str | None,
    max_mb: float,
    labels: Labels | None,
    catalogue: Catalogue,
    repository: Repository,
) -> None:
    """Download a network of the catalogue, or a file behind a URL.

    The model goes into the repository. The file is a .tflite or .onnx file. Without NAME, list the catalogue.
    """
    if source is None:
        rows = [(each, *entry.cells, Text(entry.trained_on)) for each, entry in catalogue.models.items()]
        Console().print(
            result_table(
                "Networks to fetch", {"name": "<", "network": "<", "MB": ">", "licence": "<", "trained on": "<"}, rows
            )
        )
        return
    if "://" not in source:
        if sha256 is not None or labels is not None:
            raise click.UsageError("--sha256 and --labels are for a URL: the catalogue states both")
        click.echo(fetch_network(catalogue, source, repository, name))
        return
    if name is None:
        raise click.UsageError("a URL needs --name NAME: the server's name for the file is not used")
    if sha256 is not None and not _SHA256.fullmatch(sha256.lower()):
        raise click.UsageError(f"--sha256 is {sha256[:80]!r}: give 64 hexadecimal digits")
    remote = RemoteFile(source, round(max_mb * 1e6), sha256=sha256 and sha256.lower())
    _fetch_unlisted(remote, repository.root / validate_name("model", name), labels)


def fetch_network(catalogue: Catalogue, listed: str, repository: Repository, name: str | None = None) -> str:
    """Makes a model of a network of the catalogue, called `name` or as in the catalogue; returns a line that describes it.

    Raises:
        SkylaneError: the catalogue has no such network, it cannot be downloaded, or another model has that name.
    """
    entry, folder = catalogue.model(listed), repository.root / validate_name("model", name or listed)
    path = folder / MANIFEST_NAME
    manifest = entry.manifest.with_labels(labels_from(entry.labels))
    if path.exists():
        if not is_there(folder / manifest.file, entry.sha256):
            raise SkylaneError(f"{folder} is another model: choose another name with --name, or move it away")
        return f"{folder} is there already, and its file is unchanged"
    entry.fetch(listed, folder / manifest.file)
    write_file(path, manifest.to_yaml())
    return f"{folder}: {entry.description}; {entry.licence}; trained on {entry.trained_on}"


def _fetch_unlisted(remote: RemoteFile, folder: Path, labels: Labels | None) -> None:
    suffix = check_format(remote.url, MODEL_FORMATS)
    if any(folder.glob("[!.]*")):  # The hidden part of an interrupted download is continued.
        raise SkylaneError(f"{folder} exists: choose another --name, or move it away")
    target = folder / f"{folder.name}{suffix}"
    found = download(folder.name, remote, target)
    try:
        path = _inspected(target, labels)
    except SkylaneError as error:
        if target.exists():
            raise SkylaneError(
                f"{target} is fetched, but it has no manifest yet: {error}. Then: skylane model inspect {target} --write {folder}"
            ) from error
        raise SkylaneError(f"{remote.url} is downloaded, but not kept: {error}") from error
    if remote.sha256 is None:
        click.echo(f"SHA-256 {found}: the next time, --sha256 {found} makes sure that it is the same file")
    click.echo(f"wrote {path}")


def _inspected(file: Path, labels: Labels | None) -> Path:
    """Writes the manifest of a fetched file and returns its path; removes the file unless only an option is missing."""
    from modelling.inspection import inspection, output_rule  # noqa: PLC0415  TensorFlow takes seconds to import.

    try:
        return inspection.write(inspection.inspect(file, labels=labels), file.parent)
    except output_rule.UndecidedError:
        raise
    except BaseException:
        file.unlink(missing_ok=True)
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
        raise
