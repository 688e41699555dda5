"""Models on other servers: what goes wrong there is told in one line, survived, and over once the server is well."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.engine import EngineError, InferenceError, UnavailableError
from cloud.engines.remote import channel
from cloud.engines.remote.channel import CA_VARIABLE, TOKEN_VARIABLE
from cloud.models.model import Model
from cloud.models.repository import Repository, RepositoryError
from shared.broker.certificate_authority import CertificateAuthority
from shared.config import ConfigError
from tests.support import model_servers, tiny_models
from tests.support.model_servers import MODEL, SERVERS, Server, grpc

ENGINES = {"open_inference": "triton", "tensorflow_serving": "tf_serving"}
PICTURES = tiny_models.noise(3)


@pytest.fixture(scope="module", params=SERVERS)
def _served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Server]]:
    root = tmp_path_factory.mktemp("served")
    tiny_models.write(root, "segmentation")
    with model_servers.serve(root, "segmentation", request.param, root / "saved") as server:
        yield request.param, server


@pytest.fixture
def server(_served: tuple[str, Server]) -> Iterator[Server]:
    """A server of each kind with a segmentation, well at the start of every test."""
    form, server = _served
    server.form = form  # type: ignore[attr-defined]  # Told beside the server.
    before = (server.version, server.spoil, dict(server.described))
    yield server
    server.version, server.spoil, server.described = before
    server.hold.set()
    server.batches.clear()
    server.asked.clear()


@pytest.fixture
def load(server: Server, tmp_path: Path) -> Iterator[Callable[..., Model]]:
    """Opens the server's model; `remote` are keys of that section, the others are laid over the manifest."""
    opened: list[Model] = []
    tiny_models.write(tmp_path, "segmentation")

    def call(remote: dict[str, Any] | None = None, **changes: Any) -> Model:
        name = f"remote-{len(list(tmp_path.iterdir()))}"
        form = server.form  # type: ignore[attr-defined]  # Told beside the server.
        told = {"timeout_ms": 60_000, "connect_timeout_s": 60, **(remote or {})}
        model_servers.write(tmp_path, "segmentation", form, server.address, name, told, **changes)
        opened.append(Repository(tmp_path).load(name))
        return opened[-1]

    yield call
    for model in opened:
        model.close()


def test_a_batch_goes_as_a_batch(server: Server, load: Callable[..., Model]) -> None:
    """A server with a GPU is asked once for three pictures, not three times."""
    model = load()
    server.batches.clear()
    model.infer(PICTURES)
    assert server.batches == [3]


def test_the_card_tells_who_infers_and_of_what(server: Server, load: Callable[..., Model]) -> None:
    """A mask that another server made must be traceable to it; the hash is that of what the server said."""
    card = load().card
    assert card.engine == ENGINES[server.form]  # type: ignore[attr-defined]  # Told beside the server.
    assert len(card.sha256) == 64
    assert load(sha256=card.sha256).card.sha256 == load().card.sha256 == card.sha256
    with pytest.raises(EngineError, match=r"has SHA-256 [0-9a-f]{12}…, the manifest abababababab…"):
        load(sha256="ab" * 32)
    server.version = "4"
    assert load().card.sha256 != card.sha256


def test_a_server_that_goes_and_comes_back_is_found_again(server: Server, load: Callable[..., Model]) -> None:
    """Its restart costs the frames of that time, and nobody has to restart the worker."""
    model = load()
    before = model.predict(PICTURES)
    server.stop()
    with pytest.raises(UnavailableError, match=r"^the model's server cannot be reached$"):
        model.predict(PICTURES)
    server.start()
    assert np.array_equal(_until_it_answers(model), before)


@pytest.mark.parametrize("change", ["version", "outputs"])
def test_a_server_that_comes_back_with_something_else_is_not_believed(
    server: Server, load: Callable[..., Model], change: str
) -> None:
    """Masks of another model would be told as this one's; whoever wants it loads it again."""
    model = load()
    model.predict(PICTURES)
    server.stop()
    with pytest.raises(UnavailableError):
        model.predict(PICTURES)
    if change == "version":
        server.version = "4"
    else:
        server.described["more"] = ((None,), "float32")
    server.start()
    with pytest.raises(UnavailableError, match="load it again"):
        _until_it_answers(model)
    assert load().predict(PICTURES).shape == (3, tiny_models.HEIGHT, tiny_models.WIDTH)


def test_another_version_amid_answers_is_noticed(server: Server, load: Callable[..., Model]) -> None:
    """A server may change its model without hanging up."""
    model = load()
    model.predict(PICTURES)
    server.version = "4"
    with pytest.raises(UnavailableError, match="load it again"):
        model.predict(PICTURES)


def test_a_slow_server_is_not_waited_for(server: Server, load: Callable[..., Model]) -> None:
    """One that hangs must not hang the worker; the next call finds it well."""
    model = load({"timeout_ms": 400})
    before = _until_it_answers(model, 1)
    server.hold.clear()
    with pytest.raises(UnavailableError, match=r"^the model's server did not answer within 400 ms$"):
        model.predict(PICTURES[:1])
    server.hold.set()
    assert np.array_equal(_until_it_answers(model, 1), before)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda _: {}, "left output 'scores' out"),
        (lambda arrays: {"scores": arrays["scores"].astype(np.float64)}, "gives 'scores' as float64, it told float32"),
        (lambda arrays: {"scores": arrays["scores"][:2]}, r"of shape \(2, 16, 24, 5\) to 3 pictures"),
        (lambda arrays: {"scores": arrays["scores"].reshape(3, -1)}, "scores need N×H×W×C"),
        (lambda arrays: {"scores": arrays["scores"] * np.float32(np.nan)}, "returned NaN in 'mask'"),
    ],
    ids=["missing", "dtype", "count", "rank", "nan"],
)
def test_an_answer_that_is_none_is_told(
    server: Server, load: Callable[..., Model], spoil: Callable[[Any], Any], told: str
) -> None:
    """Whatever a server answers, the frame is answered `failed` with the reason, and the next one is served."""
    model = load()
    before = model.predict(PICTURES)
    server.spoil = spoil
    with pytest.raises(InferenceError, match=told) as caught:
        model.predict(PICTURES)
    assert "\n" not in str(caught.value)
    server.spoil = lambda arrays: arrays
    assert np.array_equal(_until_it_answers(model), before)


def test_an_answer_that_is_too_large_is_not_taken(
    server: Server, load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's mistake must not take the worker's memory."""
    monkeypatch.setattr(channel, "MAX_BYTES", 1 << 16)
    model = load()
    server.spoil = lambda _: {"scores": np.zeros((3, 400, 300, 5), np.float32)}
    with pytest.raises(InferenceError, match=r"RESOURCE_EXHAUSTED: .*larger than max"):
        model.predict(PICTURES)


def test_a_refusal_of_one_picture_is_no_loss_of_the_server(load: Callable[..., Model]) -> None:
    """The batcher then tries each picture alone, as with any engine: only what is refused is lost."""
    model = load(input={**tiny_models.INPUT, "scale": 999.0, "mean": None, "std": None})
    fatal = np.ones((1, tiny_models.HEIGHT, tiny_models.WIDTH, 3), np.uint8)
    with pytest.raises(InferenceError, match="INVALID_ARGUMENT: this picture is not for me") as caught:
        model.predict(fatal)
    assert not isinstance(caught.value, UnavailableError)


def test_a_server_that_is_not_there_or_has_no_such_model_is_told(server: Server, load: Callable[..., Model]) -> None:
    """With its address: this is for who starts the worker."""
    with pytest.raises(EngineError, match=f"is not found|not find any.* at {server.address}\\?"):
        load({"model": "another"})
    with pytest.raises(EngineError, match=f"within 50 ms: is a {ENGINES[server.form]} server .*at 127.0.0.1:1\\?"):  # type: ignore[attr-defined]  # Told beside the server.
        load({"address": "127.0.0.1:1", "connect_timeout_s": 0.05})


def test_tls_and_a_token_come_by_the_environment(
    server: Server, load: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in a manifest would end up in a repository; on a bare line anybody could read it."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with pytest.raises(EngineError, match="would travel in the clear"):
        load()
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "absent.crt"))
    with pytest.raises(EngineError, match=r"absent.crt, which cannot be read"):
        load()
    server.stop()
    pair = tuple((authority.folder / f"server.{part}").read_bytes() for part in ("key", "crt"))
    server.start(grpc.ssl_server_credentials([pair]))
    try:
        monkeypatch.setenv(CA_VARIABLE, str(authority.folder / "ca.crt"))
        load().predict(PICTURES)
        assert server.asked[-1]["authorization"] == "Bearer secret"
    finally:
        server.stop()
        server.start()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "keras"}, "format keras: give remote"),
        ({"file": "model.pb"}, "leave file out"),
        ({"remote": {"address": "nowhere", "model": MODEL}}, "remote.address"),
        ({"remote": {"address": "a:1", "model": MODEL, "token": "x"}}, "unknown key"),
        ({"engine": "openvino"}, "does not read"),
    ],
)
def test_a_manifest_that_is_none_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    """Before anybody is called."""
    tiny_models.write(tmp_path, "segmentation")
    model_servers.write(tmp_path, "segmentation", "open_inference", "127.0.0.1:1", "m", **changes)
    with pytest.raises((ConfigError, RepositoryError), match=told):
        Repository(tmp_path).load("m")


def _until_it_answers(model: Model, count: int = 3) -> Any:
    """The masks, once the channel has found the server again; any other failure is raised."""
    until = datetime.now(UTC) + timedelta(seconds=60)
    while True:
        try:
            return model.predict(PICTURES[:count])
        except UnavailableError as error:
            if "load it again" in str(error) or datetime.now(UTC) > until:
                raise
