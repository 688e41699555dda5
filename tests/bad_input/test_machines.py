import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.runlog.latency_log import JOURNAL_NAME, read_rows
from shared.runlog.run_manifest import read_manifest, write_manifest
from skylane import cli
from tests.bad_input.worker import flags_of, working
from tests.full_disk import disk_of
from tests.pipeline.rig import connect


def test_full_disk_loses_only_counted_rows(
    fails: Callable[..., str], mosquitto_url: str, image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """Inference continues; the error states how many rows are missing."""
    out = tmp_path / "run"
    source = image_folder(60)
    with working(connect(mosquitto_url)) as node, disk_of(20_000):
        line = fails("edge", "play", source, *flags_of(mosquitto_url, out), "--no-sinks")
        assert node.counts == {"answered": 60}
    rows = list(read_rows(out))
    assert 0 < len(rows) < 60
    assert f"{60 - len(rows)} rows of {out / 'latency.csv'} were not written" in line
    manifest = read_manifest(out)
    assert (manifest["state"], manifest["rows_lost"]) == ("incomplete", 60 - len(rows))
    assert manifest["frames_read"] == sum(manifest["outcomes"].values()) == 60


def test_failing_sink_leaves_the_log_complete(
    fails: Callable[..., str], mosquitto_url: str, image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """The sink stops, and the run continues."""
    out = tmp_path / "run"
    (out / "masks").mkdir(parents=True)
    (out / "masks" / "images").write_text("not a folder")
    with working(connect(mosquitto_url)):
        line = fails("edge", "play", image_folder(5), *flags_of(mosquitto_url, out))
    assert "cannot be written" in line
    assert "choose another --out" in line
    assert Counter(row["outcome"] for row in read_rows(out)) == {"answered": 5}


def test_folder_of_another_run_is_not_overwritten(
    fails: Callable[..., str], mosquitto_url: str, image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """An unfinished run in the folder is repaired first."""
    out, source = tmp_path / "run", image_folder(3)
    with working(connect(mosquitto_url)):
        with pytest.raises(SystemExit) as ended:
            cli.main(["edge", "play", str(source), *flags_of(mosquitto_url, out), "--no-sinks"])
        assert ended.value.code == 0
        before = [row["sequence"] for row in read_rows(out)]
        with (out / JOURNAL_NAME).open("a") as journal:
            journal.write((out / JOURNAL_NAME).read_text().splitlines()[0].replace(",0,aborted", ",3,aborted") + "\n")
        write_manifest(out, read_manifest(out) | {"state": "running"})
        assert "already holds a run: choose another --out" in fails(
            "edge", "play", source, *flags_of(mosquitto_url, out)
        )
    assert [row["sequence"] for row in read_rows(out)] == [*before, "3"]


def test_unreachable_docker_does_not_stop_a_run(
    mosquitto_url: str,
    image_folder: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The console and the manifest state that containers are not sampled."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    out = tmp_path / "run"
    flags = (*flags_of(mosquitto_url, out), "--no-sinks", "--sample-container", "skylane-cloud-1")
    with working(connect(mosquitto_url)), pytest.raises(SystemExit) as ended:
        cli.main(["edge", "play", str(image_folder(3)), *flags])
    assert ended.value.code == 0
    assert "containers are not sampled" in " ".join(capsys.readouterr().out.split())
    assert any("no Docker engine" in remark for remark in read_manifest(out)["sampling"]["remarks"])
