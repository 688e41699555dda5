"""Health files of a worker and a vehicle, which the containers' health checks read."""

import threading
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from shared.inference.model import Model
from tests.pipeline.rig import WAIT_S, Vehicle, connect, memory_bus, pictures, serving, worker
from tests.support.waiting import until

pytestmark = pytest.mark.mosquitto


def test_health_files_exist_only_while_the_broker_is_reachable(model: Model, tmp_path: Path) -> None:
    """The broker is restarted during a run; the files are removed at the end of the nodes."""
    files = [tmp_path / "worker.health", tmp_path / "vehicle.health"]

    def all_there() -> bool:
        return all(file.exists() for file in files)

    def none_there() -> bool:
        return not any(file.exists() for file in files)

    with Broker.start(kind="mosquitto") as broker:
        url, port = broker.url, broker.listener.port
        serves = worker(url, model, health_file=files[0])
        serves.__enter__()
        vehicle = Vehicle(
            connect(url), pictures(tmp_path, 3), tmp_path / "car", loop=True, answer_timeout_s=1.0, health_file=files[1]
        )
        playing = threading.Thread(target=vehicle.play)
        playing.start()
        until(all_there)
    until(none_there)
    with Broker.start(port, kind="mosquitto"):
        until(all_there)
        vehicle.stop()
        playing.join(WAIT_S)
        assert not files[1].exists()
        assert files[0].exists()
        serves.__exit__(None, None, None)
        assert none_there()


def test_a_worker_without_a_broker_has_a_health_file_while_it_serves(model: Model, tmp_path: Path) -> None:
    """With --no-broker there is only the gateway."""
    file = tmp_path / "health"
    with memory_bus() as bus, serving(lambda _: bus, model, health_file=file):
        until(file.exists)
    assert not file.exists()
