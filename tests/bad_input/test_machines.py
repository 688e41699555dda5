"""Disks that take no more, folders that are taken, engines that do not answer: nothing that was written is lost."""

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import skylane
from shared.runlog.latency_log import JOURNAL_NAME, read_rows
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.bad_input.worker import bus_of, flags_of, working
from tests.full_disk import disk_of


def test_a_full_disk(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """Inference goes on; the rows that were written stay, the others are counted, and the line says both."""
    out = tmp_path / "run"
    source = pictures(60)
    with working(bus_of(mosquitto_url)) as node, disk_of(12_000):
        line = fails("edge", "play", source, *flags_of(mosquitto_url, out), "--no-sinks")
        assert node.counts == {"answered": 60}
    rows = list(read_rows(out))
    assert 0 < len(rows) < 60
    assert f"{60 - len(rows)} rows of {out / 'latency.csv'} were not written" in line
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["rows_lost"]) == ("incomplete", 60 - len(rows))
    assert manifest["frames_read"] == sum(manifest["outcomes"].values()) == 60


def test_a_disk_without_room_for_a_mask(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """A sink that fails is left out; the log is still whole."""
    out = tmp_path / "run"
    (out / "masks").mkdir(parents=True)
    (out / "masks" / "pictures").write_text("in the way")
    with working(bus_of(mosquitto_url)):
        line = fails("edge", "play", pictures(5), *flags_of(mosquitto_url, out))
    assert "cannot be written" in line
    assert "choose another --out" in line
    assert Counter(row["outcome"] for row in read_rows(out)) == {"answered": 5}


def test_a_folder_that_holds_a_run_is_not_written_over(
    fails: Callable[..., str], mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """What a killed run left open is closed on the way."""
    out, source = tmp_path / "run", pictures(3)
    with working(bus_of(mosquitto_url)):
        with pytest.raises(SystemExit) as ended:
            skylane.main(["edge", "play", str(source), *flags_of(mosquitto_url, out), "--no-sinks"])
        assert ended.value.code == 0
        before = [row["sequence"] for row in read_rows(out)]
        with (out / JOURNAL_NAME).open("a") as journal:
            journal.write((out / JOURNAL_NAME).read_text().splitlines()[0].replace(",0,aborted", ",3,aborted") + "\n")
        write_manifest(out, read_manifest(out) | {"state": "running"})
        assert "already holds a run: choose another --out" in fails(
            "edge", "play", source, *flags_of(mosquitto_url, out)
        )
    assert [row["sequence"] for row in read_rows(out)] == [*before, "3"]


def test_a_container_that_cannot_be_asked_for_hurts_no_run(
    mosquitto_url: str,
    pictures: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not sampled is said, on the screen and in the manifest."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    out = tmp_path / "run"
    flags = (*flags_of(mosquitto_url, out), "--no-sinks", "--sample-container", "skylane-cloud-1")
    with working(bus_of(mosquitto_url)), pytest.raises(SystemExit) as ended:
        skylane.main(["edge", "play", str(pictures(3)), *flags])
    assert ended.value.code == 0
    assert "containers are not sampled" in " ".join(capsys.readouterr().out.split())
    assert any("no Docker engine" in remark for remark in read_manifest(out)["sampling"]["remarks"])
