"""A playback that a user controls from the terminal."""

from pathlib import Path

from edge.progress import RIGHT
from ops.broker.broker import Broker
from shared.inference.model import Model
from shared.runlog.latency_log import read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import check, pictures, worker
from tests.support.terminal import Terminal


def test_the_record_of_a_run_says_what_the_user_did(mosquitto_broker: Broker, model: Model, tmp_path: Path) -> None:
    """A pause is in no frame's latency, and every frame has its row."""
    out = tmp_path / "run"
    arguments = ["-m", "skylane", "edge", "play", str(pictures(tmp_path, 5)), "--broker", mosquitto_broker.url]
    arguments += ["--model", "tiny", "--vehicle", "car-1", "--no-sinks", "--loop", "--out", str(out)]
    with worker(mosquitto_broker.url, model):
        terminal = Terminal(*arguments)
        terminal.read_until("1 answered")
        assert "keys: space pauses" in terminal.text
        terminal.press(" ")
        terminal.read_until("paused · ")
        terminal.press(f"{RIGHT}{RIGHT} +")
        terminal.read_until("speed ×2 · ")
        terminal.press("\x03")
        assert terminal.end() == 0
    rows = list(read_rows(out))
    check(rows)
    assert terminal.echoes
    notes = read_manifest(out)["source"]["notes"]
    assert any(note.startswith("the user paused once") for note in notes)
    assert "the user changed the speed: ×2" in notes
    assert "the user paused once" in terminal.text
