"""The tables of threads in docs/explanation/architecture.md are those of a running vehicle and a running worker."""

import gc
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from shared.inference.model import Model
from tests.pipeline.rig import CLASSES, HEIGHT, WIDTH, pictures, play, worker
from tests.support.local_models import write_segmentation

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
PLACEHOLDERS = {"N": r"\d+", "MODEL": ".+", "VERSION": ".+", "ADDRESS": ".+", "…": ".+"}
FRAMES = 40


@contextmanager
def watching() -> Iterator[set[str]]:
    """Collects the names of all threads that run during the block and did not run before it."""
    gc.collect()  # What other tests have left may start threads when it is collected, such as data sets of Keras.
    names: set[str] = set()
    others, ended = {*threading.enumerate()}, threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            names.update(thread.name for thread in threading.enumerate() if thread not in others)

    watcher = threading.Thread(target=watch, name="watcher")
    others.add(watcher)
    watcher.start()
    try:
        yield names
    finally:
        ended.set()
        watcher.join()


def documented() -> Sequence[Sequence[str]]:
    """Returns the names in the first column of both tables: those of a vehicle, and those of a worker."""
    section = PAGE.read_text(encoding="utf-8").partition("## Threads")[2].partition("\n## ")[0]
    tables = (part.split("\n\n")[0] for part in section.split("| --- | --- | --- |\n")[1:])
    return [
        [name for row in table.splitlines() for name in re.findall("`([^`]+)`", row.split("|")[1])] for table in tables
    ]


def matches(documented_name: str, name: str) -> bool:
    """Returns whether a thread has a documented name, whose words in capitals stand for any text, and N for a number."""
    parts = re.split(r"(?<![A-Za-z])([A-Z]+|…)(?![a-z])", documented_name)
    return re.fullmatch("".join(PLACEHOLDERS.get(part) or re.escape(part) for part in parts), name) is not None


def any_matches(documented_names: Sequence[str], name: str) -> bool:
    """Returns whether one of the documented names is that of a thread."""
    return any(matches(each, name) for each in documented_names)


@pytest.mark.mosquitto
def test_the_documented_threads_are_those_that_run(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """A thread without a row would be unknown to readers and to the limits in docs/guides/sizing.md."""
    source = pictures(tmp_path, FRAMES)
    write_segmentation(tmp_path, "local", HEIGHT, WIDTH, CLASSES)
    with (
        watching() as in_worker,
        worker(mosquitto_url, model, http="127.0.0.1:0", grpc="127.0.0.1:0") as node,
    ):
        worker_name = node.name  # The rig's own thread.
        assert httpx.get(f"http://127.0.0.1:{node.ports['http']}/metrics", verify=False).is_success
        with watching() as in_vehicle:
            for transport, endpoint in (("mqtt", None), ("grpc", "grpc"), ("oip-rest", "http")):
                addresses = (f"127.0.0.1:{node.ports[endpoint]}",) if endpoint else ()
                out = tmp_path / f"car-{transport}"
                code, printed = play(
                    source, mosquitto_url, out, transport=transport, worker_addresses=addresses, closed_loop=True
                )
                assert code == 0, printed
            options = {"local_model": "local", "models": tmp_path, "present": "hold"}
            code, printed = play(source, mosquitto_url, tmp_path / "car-local", **options)
            assert code == 0, printed
        while_serving = {*in_worker}  # Before the libraries' threads of the shutdown.
    of_vehicle, of_worker = documented()
    alone = while_serving - in_vehicle - {worker_name, "watcher"}
    assert [name for name in alone if not any_matches(of_worker, name)] == []
    assert [name for name in in_vehicle if not any_matches([*of_vehicle, *of_worker], name)] == []
    assert [known for known in of_vehicle if not any(matches(known, name) for name in in_vehicle)] == []
    assert [known for known in of_worker if not any(matches(known, name) for name in while_serving)] == []
