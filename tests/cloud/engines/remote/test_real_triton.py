"""The Triton engine with a real Triton, if `python -m bench peers --prepare` has created its environment."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bench.peers.clients import PeerError
from bench.peers.rig import Server, environment
from cloud.models.loader import ModelLoader
from shared.inference.engine import EngineError, InferenceError, ModelUnavailableError
from shared.inference.model import Model
from shared.models.repository import Repository
from shared.network.endpoint import free_ports
from tests.support.model_servers import when_available
from tests.support.tiny_models import CLASSES, HEIGHT, WIDTH, noise

CHILD = Path(__file__).with_name("triton_child.py")
BOOT_S = 60.0
LARGEST_BATCH = 4  # Equals that of triton_child.
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[Server, str]]:
    """Starts the server, always at the same gRPC address, and waits until its model is ready."""
    place = environment("triton", ROOT / "build" / "peers")
    try:
        place.check()
    except PeerError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("triton")
    ports = free_ports(2)

    def call() -> tuple[Server, str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(BOOT_S)
            arguments = (*ports, listener.getsockname()[1])
            server = Server([str(place.python), str(CHILD), *map(str, arguments)], folder, {}, folder / "log")
            try:
                listener.accept()[0].close()
            except BaseException:
                server.__exit__()
                raise
            server.tree.members()  # Records the child processes, which are found only while their parent lives.
        return server, f"127.0.0.1:{ports[1]}"

    return call


def test_batches_errors_and_a_restart_of_a_real_triton(start: Callable[[], tuple[Server, str]], tmp_path: Path) -> None:
    """A third-party server confirms the protocol: batches, its own error texts, and recovery after a restart."""
    triton, address = start()
    with triton, closing(_load(tmp_path, address)) as model:
        assert (model.card.engine, model.max_batch_size) == ("triton", 4)
        for count in (1, 3, 4, 6):
            images = noise(count)
            outputs = model.infer(images)
            assert np.array_equal(outputs["mask"], images.sum(axis=-1) % CLASSES)
            assert outputs["count"].ravel().tolist() == [min(4, count)] * min(4, count) + [2] * max(0, count - 4)
        white = np.full((1, HEIGHT, WIDTH, 3), 255, np.uint8)
        with pytest.raises(InferenceError, match="white images are refused"):
            model.infer(white)
        for changes, message in (
            ({"remote": {"address": address, "model": "another"}}, "unknown model: 'another'"),
            ({"remote": {"address": address, "model": "there", "version": "7"}}, "version 7 is not found"),
            ({"batching": {"max_size": LARGEST_BATCH + 1}}, "batch-size must be <= 4"),
        ):
            with pytest.raises((EngineError, InferenceError), match=message):
                _load(tmp_path, address, **changes).warm_up(1)
        triton.__exit__()
        with pytest.raises(ModelUnavailableError, match="cannot be reached"):
            model.infer(white)
        restarted, _ = start()
        with restarted:
            outputs = when_available(lambda: model.infer(noise(1)))
            assert np.array_equal(outputs["mask"], noise(1).sum(axis=-1) % CLASSES)


def _load(root: Path, address: str, **changes: Any) -> Model:
    manifest = {
        "task": "tensors",
        "format": "open_inference",
        "remote": {"address": address, "model": "there", "connect_timeout_s": 60},
        "input": {"tensor": "images", "height": HEIGHT, "width": WIDTH},
        "outputs": {head: {"tensor": head, "kind": "tensor"} for head in ("mask", "count")},
        "batching": {"max_size": LARGEST_BATCH},
        **changes,
    }
    name = f"m{len(list(root.iterdir()))}"
    (root / name).mkdir()
    (root / name / "model.yaml").write_text(yaml.safe_dump(manifest))
    return ModelLoader(Repository(root)).open(name)
