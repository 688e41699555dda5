"""Outages, wrong replies and security of a model on another server, for both kinds of servers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.remote import channel
from cloud.engines.remote.channel import CA_VARIABLE, TOKEN_VARIABLE
from cloud.models.loader import ModelLoader
from ops.broker.certificate_authority import CertificateAuthority
from shared.config import ConfigError
from shared.errors import SkylaneError
from shared.inference.engine import EngineError, InferenceError, ModelUnavailableError
from shared.inference.model import Model
from shared.models.repository import Repository
from tests.support import model_servers, tiny_models
from tests.support.model_servers import MODEL, SERVERS, Server, grpc, when_available

ENGINES = {"open_inference": "triton", "tensorflow_serving": "tf_serving"}
IMAGES = tiny_models.noise(3)
Load = Callable[..., Model]


@pytest.fixture(scope="module", params=SERVERS)
def _shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("served")
    tiny_models.write(root, "segmentation")
    with model_servers.serve(root, "segmentation", request.param, root / "saved") as server:
        yield server


@pytest.fixture
def server(_shared_server: Server) -> Iterator[Server]:
    """A server of each kind with a segmentation model, reset after every test."""
    server = _shared_server
    before = (server.version, server.corrupt, dict(server.tensors))
    yield server
    server.version, server.corrupt, server.tensors = before
    server.answering.set()
    server.batches.clear()
    server.call_metadata.clear()


@pytest.fixture
def load(server: Server) -> Iterator[Load]:
    """Loads the server's model; `remote` and the keywords replace keys of the remote section and of the manifest."""
    opened: list[Model] = []
    root = server.folder.parent  # It has the Keras model, too.

    def call(remote: dict[str, Any] | None = None, **changes: Any) -> Model:
        name = f"remote-{len(list(root.iterdir()))}"
        section = {"timeout_ms": 60_000, "connect_timeout_s": 60, **(remote or {})}
        model_servers.write_manifest(root, "segmentation", server.form, server.address, name, section, **changes)
        opened.append(ModelLoader(Repository(root)).open(name))
        return opened[-1]

    yield call
    for model in opened:
        model.close()


def test_a_batch_is_sent_in_one_call(server: Server, load: Load) -> None:
    """A server with a GPU is efficient only with whole batches."""
    model = load()
    server.batches.clear()
    model.infer(IMAGES)
    assert server.batches == [3]


def test_the_model_card_identifies_the_server_and_its_model(server: Server, load: Load) -> None:
    """The card has the engine and the hash of the server's description; a manifest with another hash is refused."""
    card = load().card
    assert card.engine == ENGINES[server.form]
    assert len(card.sha256) == 64
    assert load(sha256=card.sha256).card.sha256 == load().card.sha256 == card.sha256
    with pytest.raises(EngineError, match=r"has SHA-256 [0-9a-f]{12}…, the manifest abababababab…"):
        load(sha256="ab" * 32)
    server.version = "4"
    assert load().card.sha256 != card.sha256


def test_the_engine_recovers_after_a_restart_of_the_server(server: Server, load: Load) -> None:
    """An outage fails the frames of that time only; the worker needs no restart."""
    model = load()
    before = model.predict(IMAGES)
    server.stop()
    with pytest.raises(ModelUnavailableError, match=r"^the model's server cannot be reached$"):
        model.predict(IMAGES)
    server.start()
    assert np.array_equal(when_available(lambda: model.predict(IMAGES)), before)


@pytest.mark.parametrize("change", ["version", "outputs"])
def test_a_server_that_restarts_with_another_model_is_refused(server: Server, load: Load, change: str) -> None:
    """Masks of another model must not be reported as masks of the loaded one."""
    model = load()
    model.predict(IMAGES)
    server.stop()
    with pytest.raises(ModelUnavailableError):
        model.predict(IMAGES)
    if change == "version":
        server.version = "4"
    else:
        server.tensors["more"] = ((None,), "float32")
    server.start()
    with pytest.raises(ModelUnavailableError, match="load it again"):
        when_available(lambda: model.predict(IMAGES))
    assert load().predict(IMAGES).shape == (3, tiny_models.HEIGHT, tiny_models.WIDTH)


def test_a_new_model_version_on_an_open_connection_is_refused(server: Server, load: Load) -> None:
    """A server may replace its model without closing the connection."""
    model = load()
    model.predict(IMAGES)
    server.version = "4"
    with pytest.raises(ModelUnavailableError, match="load it again"):
        model.predict(IMAGES)


def test_a_call_to_a_slow_server_times_out(server: Server, load: Load) -> None:
    """A server that hangs must not block the worker; the next call works again."""
    model = load({"timeout_ms": 400})
    before = when_available(lambda: model.predict(IMAGES[:1]))
    server.answering.clear()
    with pytest.raises(ModelUnavailableError, match=r"^the model's server did not answer within 400 ms$"):
        model.predict(IMAGES[:1])
    server.answering.set()
    assert np.array_equal(when_available(lambda: model.predict(IMAGES[:1])), before)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda _: {}, "lacks output 'scores'"),
        (
            lambda arrays: {"scores": arrays["scores"].astype(np.float64)},
            "gives 'scores' as float64, it declared float32",
        ),
        (lambda arrays: {"scores": arrays["scores"][:2]}, r"of shape \(2, 16, 24, 5\) for 3 images"),
        (lambda arrays: {"scores": arrays["scores"].reshape(3, -1)}, "scores need N×H×W×C"),
        (lambda arrays: {"scores": arrays["scores"] * np.float32(np.nan)}, "returned NaN in 'mask'"),
    ],
    ids=["missing", "dtype", "count", "rank", "nan"],
)
def test_a_wrong_reply_fails_its_batch_only(
    server: Server, load: Load, corrupt: Callable[[Any], Any], message: str
) -> None:
    """The error has one line with the reason, and the next batch works."""
    model = load()
    before = model.predict(IMAGES)
    server.corrupt = corrupt
    with pytest.raises(InferenceError, match=message) as caught:
        model.predict(IMAGES)
    assert "\n" not in str(caught.value)
    server.corrupt = lambda arrays: arrays
    assert np.array_equal(when_available(lambda: model.predict(IMAGES)), before)


def test_a_reply_that_is_too_large_is_refused(server: Server, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty server must not exhaust the worker's memory."""
    monkeypatch.setattr(channel, "MAX_BYTES", 1 << 16)
    model = load()
    server.corrupt = lambda _: {"scores": np.zeros((3, 400, 300, 5), np.float32)}
    with pytest.raises(InferenceError, match=r"RESOURCE_EXHAUSTED: .*larger than max"):
        model.predict(IMAGES)


def test_a_refused_image_does_not_count_as_an_outage(load: Load) -> None:
    """The batcher then retries each image alone, so that only the refused one fails."""
    model = load(input={**tiny_models.INPUT, "scale": 999.0, "mean": None, "std": None})
    refused = np.ones((1, tiny_models.HEIGHT, tiny_models.WIDTH, 3), np.uint8)
    with pytest.raises(InferenceError, match="INVALID_ARGUMENT: this image is refused") as caught:
        model.predict(refused)
    assert not isinstance(caught.value, ModelUnavailableError)


def test_a_missing_server_or_model_is_reported_with_its_address(server: Server, load: Load) -> None:
    """The operator who starts the worker needs the address."""
    with pytest.raises(EngineError, match=f"is not found|not find any.* at {server.address}\\?"):
        load({"model": "another"})
    with pytest.raises(EngineError, match=f"within 50 ms: is a {ENGINES[server.form]} server .*at 127.0.0.1:1\\?"):
        load({"address": "127.0.0.1:1", "connect_timeout_s": 0.05})


def test_tls_and_token_are_read_from_the_environment(
    server: Server, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token must neither be in a manifest nor be sent without encryption."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with pytest.raises(EngineError, match="would be sent unencrypted"):
        load()
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "absent.crt"))
    with pytest.raises(EngineError, match=r"absent.crt, which cannot be read"):
        load()
    server.stop()
    pair = tuple((authority.folder / f"server.{part}").read_bytes() for part in ("key", "crt"))
    server.start(grpc.ssl_server_credentials([pair]))
    try:
        monkeypatch.setenv(CA_VARIABLE, str(authority.folder / "ca.crt"))
        load().predict(IMAGES)
        assert server.call_metadata[-1]["authorization"] == "Bearer secret"
    finally:
        server.stop()
        server.start()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "keras"}, "format keras: remote, "),
        ({"file": "model.pb"}, "remove file or remote"),
        ({"remote": {"address": "nowhere", "model": MODEL}}, "remote.address"),
        ({"remote": {"address": "a:1", "model": MODEL, "token": "x"}}, "unknown key"),
        ({"engine": "openvino"}, "does not read"),
    ],
)
def test_an_invalid_manifest_is_refused_before_any_call(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The error names the key."""
    tiny_models.write(tmp_path, "segmentation")
    model_servers.write_manifest(tmp_path, "segmentation", "open_inference", "127.0.0.1:1", "m", **changes)
    with pytest.raises((ConfigError, SkylaneError), match=message):
        ModelLoader(Repository(tmp_path)).open("m")
