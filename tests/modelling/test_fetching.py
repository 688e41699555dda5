"""`skylane model fetch` and `skylane bag fetch`, from a server of this machine."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from modelling.model_cli import model
from rosbag_tools.cli import bag
from shared.catalogue import Catalogue
from shared.models.repository import Repository
from shared.package_data import shipped
from tests.support.file_server import serving
from tests.support.foreign_models import onnx_constants

STORED = Repository(shipped("models")).find("road-tiny")
FILE = STORED.file().read_bytes()
KEYS = ("task", "format", "input", "output", "confidence")


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server with the file of a network."""
    with serving([], FILE) as address:
        yield address


@pytest.fixture
def entry(server: str) -> dict[str, Any]:
    """An entry of the catalogue for it."""
    document = yaml.safe_load(STORED.manifest.to_yaml())
    return {
        "url": f"{server}/{STORED.manifest.file}",
        "size": len(FILE),
        "sha256": hashlib.sha256(FILE).hexdigest(),
        "licence": "Apache-2.0",
        "trained_on": "a synthetic drive",
        "labels": "street12",
        "manifest": {key: document[key] for key in KEYS if key in document},
    }


def run(tmp_path: Path, entry: dict[str, Any], *arguments: str, code: int = 0) -> str:
    """Runs `model fetch` with a catalogue of one entry; returns what it prints, or its error."""
    catalogue = tmp_path / "catalogue.yaml"
    catalogue.write_text(
        yaml.safe_dump(
            {"models": {"tiny": {key: entry[key] for key in entry if key != "bag"}}, "bags": {"drive": picked(entry)}}
        )
    )
    command, *rest = arguments
    result = CliRunner().invoke(
        bag if command == "bag" else model,
        [
            "fetch",
            *rest,
            "--catalogue",
            str(catalogue),
            *(() if command == "bag" else ("--models", str(tmp_path / "models"))),
        ],
    )
    assert result.exit_code == code, result.output
    return result.output if result.exception is None else f"{result.output}{result.exception}"


def picked(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a recording."""
    keys = ("url", "size", "sha256", "licence", "description")
    picked = {key: entry[key] for key in keys if key in entry}
    return picked | {"url": entry.get("bag", f"{entry['url'].rpartition('.')[0]}.mp4")}


def test_a_network_of_the_catalogue_becomes_a_model(tmp_path: Path, entry: dict[str, Any]) -> None:
    """Its manifest has the hash, so that a worker serves exactly this file."""
    assert "Apache-2.0; trained on a synthetic drive" in run(tmp_path, entry, "model", "tiny")
    stored = Repository(tmp_path / "models").find("tiny")
    assert stored.file().read_bytes() == FILE
    assert stored.manifest.sha256 == entry["sha256"]
    assert stored.labels() == STORED.labels()
    assert "is there already" in run(tmp_path, entry, "model", "tiny")


def test_a_file_that_was_put_there_by_hand_is_used(tmp_path: Path, entry: dict[str, Any]) -> None:
    """As the error without a network advises."""
    folder = tmp_path / "models" / "tiny"
    lost = entry | {"url": "http://127.0.0.1:1/network.tflite"}
    error = run(tmp_path, lost, "model", "tiny", code=1)
    assert "Connection refused" in error
    assert f"put it at {folder}/network.tflite, and run this again" in error
    assert not folder.exists()
    folder.mkdir(parents=True)
    (folder / "network.tflite").write_bytes(FILE)
    run(tmp_path, lost, "model", "tiny")
    assert Repository(tmp_path / "models").find("tiny").file().read_bytes() == FILE


def test_another_model_of_that_name_is_kept(tmp_path: Path, entry: dict[str, Any]) -> None:
    """Neither its file nor its manifest changes."""
    run(tmp_path, entry, "model", "tiny")
    path = tmp_path / "models" / "tiny" / STORED.manifest.file
    path.write_bytes(b"another")
    assert f"{path} exists and has SHA-256" in run(tmp_path, entry, "model", "tiny", code=1)
    assert path.read_bytes() == b"another"


def test_a_url_needs_a_name_and_prints_its_hash(tmp_path: Path, entry: dict[str, Any]) -> None:
    """The server's name for the file is not used."""
    assert "a URL needs --name NAME" in run(tmp_path, entry, "model", entry["url"], code=2)
    printed = run(tmp_path, entry, "model", entry["url"], "--name", "mine", "--labels", "street12")
    assert f"SHA-256 {entry['sha256']}" in printed
    assert Repository(tmp_path / "models").find("mine").file().name == "mine.tflite"
    assert "exists: choose another --name" in run(tmp_path, entry, "model", entry["url"], "--name", "mine", code=1)


@pytest.mark.parametrize(
    ("path", "arguments", "problem"),
    [
        ("network.pt", (), "does not end in .tflite or .onnx: other formats can run code"),
        ("missing/a.onnx", (), "the server answers 404"),
        ("cut-once/a.tflite", (), "is downloaded, but not kept"),
        ("a.tflite", ("--sha256", "0" * 64), "it has SHA-256"),
        ("a.tflite", ("--max-mb", "0.001"), "more than 0.001 MB: allow more with --max-mb"),
    ],
)
def test_what_cannot_be_used_leaves_nothing(
    tmp_path: Path, entry: dict[str, Any], server: str, *, path: str, arguments: tuple[str, ...], problem: str
) -> None:
    """The message says why."""
    assert problem in run(tmp_path, entry, "model", f"{server}/{path}", "--name", "mine", *arguments, code=1)
    assert not (tmp_path / "models" / "mine").exists()


def test_an_interrupted_download_goes_on(tmp_path: Path, entry: dict[str, Any]) -> None:
    """The part of it is no model of that name."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / f".mine.tflite.{entry['sha256'][:12]}.part").write_bytes(FILE[:1000])
    options = ("--name", "mine", "--labels", "street12", "--sha256", entry["sha256"])
    run(tmp_path, entry, "model", entry["url"].replace("model.tflite", "cut/model.tflite"), *options)
    assert Repository(tmp_path / "models").find("mine").file().read_bytes() == FILE


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("tiny", "--sha256", "0" * 64), "--sha256 and --labels are for a URL"),
        (("tiny", "--labels", "street12"), "--sha256 and --labels are for a URL"),
        (("https://example.com/a.onnx", "--name", "mine", "--sha256", "0" * 63), "give 64 hexadecimal digits"),
    ],
)
def test_an_option_that_does_not_fit_the_source_is_a_usage_error(
    tmp_path: Path, entry: dict[str, Any], arguments: tuple[str, ...], problem: str
) -> None:
    """The catalogue has the hash and the labels of its networks."""
    assert problem in run(tmp_path, entry, "model", *arguments, code=2)
    assert not (tmp_path / "models").exists()


def test_a_file_whose_outputs_are_not_clear_is_kept(tmp_path: Path, entry: dict[str, Any]) -> None:
    """The message has the command that asks for the missing option."""
    scores = np.random.default_rng(0).normal(size=(1, 5, 64, 64)).astype(np.float32)
    onnx_constants(tmp_path / "two-outputs.onnx", {"a": scores, "b": -scores})
    with serving([], (tmp_path / "two-outputs.onnx").read_bytes()) as address:
        error = run(tmp_path, entry, "model", f"{address}/a.onnx", "--name", "mine", code=1)
    assert "is fetched, but it has no manifest yet" in error
    assert "give --output NAME" in error
    assert "skylane model inspect" in error
    assert (tmp_path / "models" / "mine" / "mine.onnx").exists()


def test_a_file_that_is_no_network_does_not_block_the_next_try(
    tmp_path: Path, entry: dict[str, Any], server: str
) -> None:
    """The first answer is cut and has no length, so only the inspection shows it; the second one is whole."""
    arguments = ("model", f"{server}/cut-once/a.tflite", "--name", "mine", "--labels", "street12")
    error = run(tmp_path, entry, *arguments, code=1)
    assert "is downloaded, but not kept" in error
    assert "--sha256" not in error
    run(tmp_path, entry, *arguments)
    assert Repository(tmp_path / "models").find("mine").file().read_bytes() == FILE


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"url": "http://example.com/a"}, "http is for this machine only"),
        ({"url": "https://example.com/a.pt"}, "does not end in .tflite or .onnx: other formats can run code"),
        ({"sha256": "abc"}, "sha256"),
        ({"size": 0}, "size"),
        ({"licence": ""}, "licence"),
        ({"colour": "red"}, "colour"),
        ({"manifest": {"format": "tflite"}}, "catalogue.yaml: models.tiny.manifest.input: is missing: add it"),
        ({"manifest": {}}, "catalogue.yaml: models.tiny.manifest.format: is missing"),
        ({"url": "https://example.com/a.onnx"}, "models.tiny: manifest.format is 'tflite', and the file"),
        ({"labels": "nothing"}, "no label set 'nothing'"),
    ],
    ids=str,
)
def test_a_wrong_catalogue_is_refused(
    tmp_path: Path, entry: dict[str, Any], changed: dict[str, Any], problem: str
) -> None:
    """The message names the key."""
    assert problem in run(tmp_path, entry | changed, "model", "tiny", code=1)
    assert not (tmp_path / "models").exists()


def test_a_recording_is_fetched_once(tmp_path: Path, entry: dict[str, Any]) -> None:
    """An unknown name is answered with the nearest one."""
    out = tmp_path / "bags"
    assert f"{out}/drive.mp4" in run(tmp_path, entry, "bag", "drive", "--out", str(out))
    lost = entry | {"url": entry["url"].replace("/model", "/missing/model")}
    assert f"{out}/drive.mp4" in run(tmp_path, lost, "bag", "drive", "--out", str(out))
    assert "did you mean drive?" in run(tmp_path, entry, "bag", "drives", code=1)
    assert "drive" in run(tmp_path, entry, "bag")


@pytest.mark.parametrize("name", ["drive.zip", "drive.tar.gz", "drive.pkl", "drive", "drive.mcap.zstd"])
def test_a_recording_in_another_format_is_refused(tmp_path: Path, entry: dict[str, Any], name: str) -> None:
    """Archives, and formats that can run code."""
    error = run(
        tmp_path, entry | {"bag": f"https://example.com/{name}"}, "bag", "drive", "--out", str(tmp_path), code=1
    )
    assert "catalogue.yaml: bags.drive.url: " in error
    assert "does not end in .bag or .db3 or .mcap" in error


@pytest.mark.parametrize("command", ["bag", "model"])
def test_texts_of_a_catalogue_are_printed_as_they_are(tmp_path: Path, entry: dict[str, Any], command: str) -> None:
    """Neither as markup, nor as commands to the terminal."""
    texts = dict.fromkeys(("licence", "description", "trained_on"), "[red]x[/blue]\x1b")
    assert "[red]x[/blue] " in run(tmp_path, entry | texts, command)
    out = ("--out", str(tmp_path / "bags")) if command == "bag" else ()
    printed = run(tmp_path, entry | texts, command, "drive" if command == "bag" else "tiny", *out)
    assert "[red]x[/blue] ; [red]x[/blue] " in printed
    assert "\x1b" not in printed


def test_the_shipped_catalogue_is_valid() -> None:
    """Each address names a fixed commit, so that the file behind it does not change."""
    shipped_one = Catalogue.read(None)
    for entry in (*shipped_one.models.values(), *shipped_one.bags.values()):
        assert re.search(r"/[0-9a-f]{40}/", entry.url), entry.url
    assert sorted(shipped_one.bags) == ["fixed-camera", "highway", "lanes"]
