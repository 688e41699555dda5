"""The engine of Triton against a real one, where `skylane bench peers --prepare` has made its environment."""

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bench.harness.environment import free_ports
from bench.peers.clients.client import PeerError
from bench.peers.rig.environments import environment
from bench.peers.rig.server import Server
from cloud.engines.engine import EngineError, InferenceError, UnavailableError
from cloud.models.model import Model
from cloud.models.repository import Repository
from tests.support.model_servers import await_line
from tests.support.tiny_models import CLASSES, HEIGHT, WIDTH, noise

CHILD = Path(__file__).with_name("triton_child.py")
BOOT_S = 60.0
LARGEST_BATCH = 4  # As the child has it.
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Server]:
    """Starts the server, always at one address, and waits until it has its model."""
    place = environment("triton", ROOT / "build" / "peers")
    try:
        place.check()
    except PeerError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("triton")
    ports = free_ports(2)

    def call() -> Server:
        with socket.create_server(("127.0.0.1", 0)) as ear:
            ear.settimeout(BOOT_S)
            told = (*ports, ear.getsockname()[1])
            server = Server([str(place.python), str(CHILD), *map(str, told)], folder, {}, folder / "log")
            try:
                ear.accept()[0].close()
            except BaseException:
                server.__exit__()
                raise
            server.tree.members()  # Who is seen now is known later, when its parent is gone.
        server.address = f"127.0.0.1:{ports[1]}"  # type: ignore[attr-defined]  # Told beside the server.
        return server

    return call


def test_a_real_triton_answers_is_lost_and_is_found_again(start: Callable[[], Server], tmp_path: Path) -> None:
    """The protocol as a server of another maker speaks it: in batches, with its own errors, over its restart."""
    with start() as server, closing(_load(tmp_path, server.address)) as model:  # type: ignore[attr-defined]  # Told beside the server.
        assert (model.card.engine, model.max_batch_size) == ("triton", 4)
        for count in (1, 3, 4, 6):
            pictures = noise(count)
            answers = model.infer(pictures)
            assert np.array_equal(answers["mask"], pictures.sum(axis=-1) % CLASSES)
            assert answers["count"].ravel().tolist() == [min(4, count)] * min(4, count) + [2] * max(0, count - 4)
        white = np.full((1, HEIGHT, WIDTH, 3), 255, np.uint8)
        with pytest.raises(InferenceError, match="white is not for me"):
            model.infer(white)
        for changes, told in (
            ({"remote": {"address": server.address, "model": "another"}}, "unknown model: 'another'"),  # type: ignore[attr-defined]  # Told beside the server.
            ({"remote": {"address": server.address, "model": "there", "version": "7"}}, "version 7 is not found"),  # type: ignore[attr-defined]  # Told beside the server.
            ({"batching": {"max_size": LARGEST_BATCH + 1}}, "batch-size must be <= 4"),
        ):
            with pytest.raises((EngineError, InferenceError), match=told):
                _load(tmp_path, server.address, **changes).warm_up(1)  # type: ignore[attr-defined]  # Told beside the server.
        server.__exit__()
        with pytest.raises(UnavailableError, match="cannot be reached"):
            model.infer(white)
        with start():
            await_line(model)
            assert np.array_equal(model.infer(noise(1))["mask"], noise(1).sum(axis=-1) % CLASSES)


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
    return Repository(root).load(name)
