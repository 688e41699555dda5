"""The Open Inference Protocol's doors, by Triton's own clients, which know nothing of Skylane."""

from collections.abc import Iterator
from importlib import import_module
from socket import AF_INET
from typing import Any, NamedTuple

import cv2
import numpy as np
import psutil
import pytest

from cloud.engines.engine import Placement
from cloud.engines.tensorflow.library import tf
from cloud.gateway.settings import GatewaySettings
from cloud.models.loader import Loader
from cloud.models.model import Model
from shared.imaging import image_codecs, mask_codecs
from shared.imaging.frames import Layout
from shared.network.endpoint import is_loopback
from tests.cloud.conftest import Workshop
from tests.support import tiny_model
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH

TritonError: Any = import_module("tritonclient.utils").InferenceServerException
WAIT_S = 60.0


class Face(NamedTuple):
    """One of the two doors, and the client that goes through it."""

    name: str
    library: Any  # tritonclient.grpc or tritonclient.http, which are called alike.

    def open(self, doors: Doors) -> Any:
        """A client; use it in a `with`."""
        return self.library.InferenceServerClient(getattr(doors, self.name))

    def input(self, name: str, values: Any, datatype: str = "UINT8", **keywords: Any) -> Any:
        """An input with its values."""
        tensor = self.library.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values, **keywords)
        return tensor

    def images(self, *pictures: bytes) -> Any:
        """Encoded pictures."""
        return self.input("image_bytes", np.array(pictures, object), "BYTES")

    def outputs(self, *names: str, **keywords: Any) -> Any:
        """Outputs that are asked for."""
        return [self.library.InferRequestedOutput(name, **keywords) for name in names]

    def told(self, answer: Any, **path: str) -> Any:
        """What a client that describes gives, as JSON has it."""
        if self.name == "http":
            return answer
        plain: Any = import_module("google.protobuf.json_format").MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return plain[path["of"]] if "of" in path else plain


@pytest.fixture(name="face", params=["grpc", "http"])
def _face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param, import_module(f"tritonclient.{request.param}"))


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_gateway(tiny_model.model(), tiny_model.model(name="other", version="1.2")) as doors:
        yield doors


@pytest.fixture(name="client")
def _client(face: Face, doors: Doors) -> Iterator[Any]:
    with face.open(doors) as client:
        yield client


def noise(count: int, height: int = HEIGHT, width: int = WIDTH) -> Any:
    """uint8 N×H×W×3."""
    return np.random.default_rng(3).integers(0, 256, (count, height, width, 3), np.uint8)


def png(picture: Any) -> bytes:
    """An RGB picture, losslessly."""
    return bytes(cv2.imencode(".png", picture[..., ::-1])[1])


def test_ordinary_calls_get_what_the_direct_call_gives(face: Face, workshop: Workshop) -> None:
    """The three lines that everybody's client has work unchanged on a real model, bit by bit."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    pictures = noise(3, 8, 12)
    with workshop.repository.load("net", Placement(device="cpu")) as net:
        direct = net.predict(pictures)
        with open_gateway(net) as doors, face.open(doors) as client:
            answer = client.infer("net", [face.input("input", pictures)])
    np.testing.assert_array_equal(answer.as_numpy("mask"), direct)
    assert answer.as_numpy("mask").dtype == np.uint8


def test_health_tells_of_the_server_and_of_each_model(face: Face, client: Any) -> None:
    """Balancers look at these before they send anything."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("tiny", "9")
    assert not client.is_model_ready("nobody's")
    assert face.told(client.get_server_metadata())["name"] == "skylane"


def test_metadata_tells_every_tensor(face: Face, client: Any) -> None:
    """A client that knows nothing builds its call from this."""
    told = face.told(client.get_model_metadata("tiny"))
    shapes = {each["name"]: (each["datatype"], [int(side) for side in each["shape"]]) for each in told["inputs"]}
    assert shapes == {"input": ("UINT8", [-1, HEIGHT, WIDTH, 3]), "image_bytes": ("BYTES", [-1])}
    shapes = {each["name"]: (each["datatype"], [int(side) for side in each["shape"]]) for each in told["outputs"]}
    assert shapes == {"mask": ("UINT8", [-1, HEIGHT, WIDTH]), "result_bytes": ("BYTES", [-1])}
    assert told["versions"] == ["1"]


def test_the_configuration_tells_load_generators_what_to_send(face: Face, client: Any) -> None:
    """They read the batch, and which input may be left out, from here alone."""
    told = face.told(client.get_model_config("tiny", "1"), of="config")
    assert told["max_batch_size"] == 64
    pixels, pictures = told["input"]
    assert (pixels["data_type"], [int(side) for side in pixels["dims"]]) == ("TYPE_UINT8", [HEIGHT, WIDTH, 3])
    assert (pictures["data_type"], pictures["optional"]) == ("TYPE_STRING", True)
    assert [each["name"] for each in told["output"]] == ["mask", "result_bytes"]


def test_statistics_count_what_each_model_did(face: Face) -> None:
    """Load generators read from these where the time went."""
    with open_gateway(tiny_model.model(), tiny_model.model(name="other")) as doors, face.open(doors) as client:
        client.infer("tiny", [face.input("input", noise(3))])
        with pytest.raises(TritonError):
            client.infer("tiny", [face.images(b"not folded")], parameters={"codec": "lz4"})
        told = face.told(client.get_inference_statistics())["model_stats"]
        (alone,) = face.told(client.get_inference_statistics("other", "1"))["model_stats"]
        with pytest.raises(TritonError, match="none is not served here"):
            client.get_inference_statistics("none")
    assert [each["name"] for each in told] == ["other", "tiny"]
    stats = told[1]["inference_stats"]
    assert [int(each["inference_count"]) for each in (*told, alone)] == [0, 3, 0]
    assert 1 <= int(told[1]["execution_count"]) <= 3
    assert (int(stats["success"]["count"]), int(stats["fail"]["count"])) == (3, 1)
    parts = [int(stats[part]["ns"]) for part in ("queue", "compute_input", "compute_infer", "compute_output")]
    assert 0 < sum(parts) <= int(stats["success"]["ns"])


@pytest.mark.parametrize("version", ["", "1"])
def test_a_batch_comes_back_in_its_order_under_its_id(face: Face, client: Any, version: str) -> None:
    """Each picture is a frame of its own in the worker; they may not change places."""
    pictures = noise(5)
    answer = client.infer("tiny", [face.input("input", pictures)], model_version=version, request_id="seven")
    np.testing.assert_array_equal(answer.as_numpy("mask"), pictures[..., 0])
    told = face.told(answer.get_response())
    assert (told["model_name"], told["model_version"], told["id"]) == ("tiny", "1", "seven")


def test_encoded_pictures_come_back_as_outputs_or_as_finished_results(face: Face, client: Any) -> None:
    """A PNG is a hundredth of its pixels; a result packed by the worker is one too."""
    pictures = noise(2)
    tensors = [face.images(*map(png, pictures))]
    answer = client.infer("tiny", tensors, outputs=face.outputs("mask"))
    np.testing.assert_array_equal(answer.as_numpy("mask"), pictures[..., 0])
    for codec in ("png", "zstd"):
        parameters = {"mask_codec": codec}
        answer = client.infer("tiny", tensors, outputs=face.outputs("result_bytes"), parameters=parameters)
        assert answer.as_numpy("mask") is None  # What is not asked for is not sent.
        for packed, picture in zip(answer.as_numpy("result_bytes"), pictures, strict=True):
            np.testing.assert_array_equal(mask_codecs.decode(packed, codec, (HEIGHT, WIDTH)), picture[..., 0])


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
def test_pixels_may_be_folded(face: Face, client: Any, codec: str) -> None:
    """By a parameter, for links on which a JPEG would cost what the model sees."""
    picture = noise(1)[0]
    folded = face.images(bytes(image_codecs.encode(picture, Layout.RGB8, codec, 90)))
    answer = client.infer("tiny", [folded], parameters={"codec": codec})
    np.testing.assert_array_equal(answer.as_numpy("mask")[0], picture[..., 0])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_calls_and_answers_may_be_compressed(face: Face, client: Any, algorithm: str) -> None:
    """By the transport's own means, which the clients offer as an option."""
    pictures = noise(2)
    ways = {"compression_algorithm": algorithm}
    if face.name == "http":
        ways = {f"{way}_compression_algorithm": algorithm for way in ("request", "response")}
    answer = client.infer("tiny", [face.input("input", pictures)], **ways)
    np.testing.assert_array_equal(answer.as_numpy("mask"), pictures[..., 0])


def test_calls_need_not_be_waited_for(face: Face, client: Any) -> None:
    """The asynchronous form of both clients is what load generators use."""
    pictures = noise(1)
    tensors = [face.input("input", pictures)]
    if face.name == "http":
        answers = [client.async_infer("tiny", tensors).get_result() for _ in range(3)]
    else:
        queue: Any = import_module("queue").Queue()
        for _ in range(3):
            client.async_infer("tiny", tensors, lambda result, error: queue.put(error or result))
        answers = [queue.get(timeout=WAIT_S) for _ in range(3)]
    for answer in answers:
        np.testing.assert_array_equal(answer.as_numpy("mask"), pictures[..., 0])


def test_the_clients_of_asyncio_are_answered_too(face: Face, doors: Doors) -> None:
    """They are other implementations, on other HTTP libraries."""
    aio = Face(face.name, import_module(f"tritonclient.{face.name}.aio"))
    pictures = noise(1)

    async def call() -> Any:
        async with aio.open(doors) as client:
            assert await client.is_server_ready()
            return await client.infer("tiny", [face.input("input", pictures)])

    answer = import_module("asyncio").run(call())
    np.testing.assert_array_equal(answer.as_numpy("mask"), pictures[..., 0])


def code(face: Face, http: int, grpc: str) -> str:
    """What Triton's client calls a status."""
    return str(http) if face.name == "http" else f"StatusCode.{grpc}"


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "model": ({"model": "none"}, 404, "NOT_FOUND", "none is not served here: ask for other version 1.2, tiny"),
    "version": ({"version": "9"}, 404, "NOT_FOUND", "tiny version 9 is not served here"),
    "name": ({"name": "pixels"}, 400, "INVALID_ARGUMENT", r"inputs pixels: give one, input \(uint8 \[n, 4, 6, 3\]\)"),
    "dtype": ({"dtype": "float32", "datatype": "FP32"}, 400, "INVALID_ARGUMENT", "input is float32: send uint8"),
    "shape": ({"height": 5}, 400, "INVALID_ARGUMENT", r"input has shape \[1, 5, 6, 3\]: send \[n, 4, 6, 3\]"),
    "batch": ({"count": 65}, 400, "INVALID_ARGUMENT", "65 pictures in one call: at most 64 are taken"),
    "none": ({"count": 0}, 400, "INVALID_ARGUMENT", "no picture"),
    "output": ({"outputs": ["scores"]}, 400, "INVALID_ARGUMENT", "no output scores: ask for mask"),
    "codec": ({"parameters": {"mask_codec": "jpeg"}, "outputs": ["result_bytes"]}, 422, "INVALID_ARGUMENT", "codec"),
    "parameter": ({"parameters": {"mask_codec": 7}}, 400, "INVALID_ARGUMENT", "parameter mask_codec is '7'"),
    "timeout": ({"timeout": 1}, 408, "DEADLINE_EXCEEDED", "budget"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_refused_with_what_is_expected(face: Face, client: Any, case: str) -> None:
    """The protocol's own error form, so that the client raises its own error, with a text that helps."""
    given, http, grpc, text = REFUSED[case]
    pictures = noise(given.get("count", 1), given.get("height", HEIGHT)).astype(given.get("dtype", "uint8"))
    tensor = face.input(given.get("name", "input"), pictures, given.get("datatype", "UINT8"))
    with pytest.raises(TritonError, match=text) as raised:
        client.infer(
            given.get("model", "tiny"),
            [tensor],
            model_version=given.get("version", ""),
            outputs=face.outputs(*given["outputs"]) if "outputs" in given else None,
            parameters=given.get("parameters"),
            timeout=given.get("timeout"),
        )
    assert raised.value.status() == code(face, http, grpc)


def test_a_picture_that_is_none_is_unprocessable(face: Face, client: Any) -> None:
    """It could be read, but nothing can be made of it; what is wrong with it is said."""
    with pytest.raises(TritonError, match="send a JPEG or a PNG") as raised:
        client.infer("tiny", [face.images(b"no picture")])
    assert raised.value.status() == code(face, 422, "INVALID_ARGUMENT")


def test_an_input_that_comes_twice_is_refused(face: Face, client: Any) -> None:
    """Otherwise the last one would win, and nobody know."""
    tensor = face.input("input", noise(1))
    with pytest.raises(TritonError, match="input input comes twice"):
        client.infer("tiny", [tensor, tensor])


def test_shared_memory_is_refused_by_name(face: Face, client: Any) -> None:
    """Its region was never registered here: the client must know that its data did not come."""
    tensor = face.library.InferInput("input", [1, HEIGHT, WIDTH, 3], "UINT8")
    tensor.set_shared_memory("region", HEIGHT * WIDTH * 3)
    with pytest.raises(TritonError, match="lies in shared memory"):
        client.infer("tiny", [tensor])
    wanted = face.outputs("mask")
    wanted[0].set_shared_memory("region", HEIGHT * WIDTH)
    with pytest.raises(TritonError, match="output 'mask' lies in shared memory"):
        client.infer("tiny", [face.input("input", noise(1))], outputs=wanted)


def test_a_clients_own_timeout_is_its_deadline(face: Face) -> None:
    """A caller that waits no more must be told so, and cost the worker nothing more than what has begun."""
    held = import_module("threading").Event()
    with open_gateway(tiny_model.model(lambda: held.wait(WAIT_S) and None)) as doors:
        late = {"client_timeout": 0.2} if face.name == "grpc" else {}
        options = {} if face.name == "grpc" else {"network_timeout": 0.2}
        library = face.library
        with (
            library.InferenceServerClient(getattr(doors, face.name), **options) as client,
            pytest.raises(Exception, match=r"[Dd]eadline|timed out"),
        ):
            client.infer("tiny", [face.input("input", noise(1))], **late)
        held.set()


def test_models_are_listed_loaded_and_unloaded(face: Face, workshop: Workshop) -> None:
    """Over the same repository as operators have it over the broker."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    loader = Loader(workshop.repository, Placement(device="cpu"), warm_up_runs=1)
    pictures = noise(1, 8, 12)
    with open_gateway(loader=loader) as doors, face.open(doors) as client:
        assert states(face, client) == {"net": "UNAVAILABLE"}
        client.load_model("net")
        assert states(face, client) == {"net": "READY"}
        assert client.infer("net", [face.input("input", pictures)]).as_numpy("mask").shape == (1, 8, 12)
        client.unload_model("net")
        assert not client.is_model_ready("net")
        with pytest.raises(TritonError, match="no model 'nets'"):
            client.load_model("nets")
        with pytest.raises(TritonError, match="parameter config: models are loaded from the worker's repository"):
            client.load_model("net", config="{}")


def test_models_are_not_changed_from_another_machine_without_a_token(face: Face) -> None:
    """This machine's address in the network stands for another's: such a call does not come from a loopback address."""
    addresses = [each.address for many in psutil.net_if_addrs().values() for each in many if each.family == AF_INET]
    outside = next((address for address in addresses if not is_loopback(address)), None)
    if outside is None:
        pytest.skip("this machine has no address but its loopback")
    everywhere = GatewaySettings(http="0.0.0.0:0", grpc="0.0.0.0:0")
    with open_gateway(tiny_model.model(), gateway=everywhere) as doors:
        address = f"{outside}:{doors.node.ports[face.name]}"
        with face.library.InferenceServerClient(address) as client:
            assert states(face, client) == {"tiny": "READY"}
            with pytest.raises(TritonError, match="from the worker's own machine, or with a token"):
                client.unload_model("tiny")
            assert states(face, client) == {"tiny": "READY"}


def test_raw_tensors_are_described_as_the_warm_up_found_them(face: Face, workshop: Workshop) -> None:
    """No manifest says what a model of raw tensors gives; a client must know before its first call."""
    workshop.add(
        "raw",
        workshop.graph(lambda scores: tf.reduce_mean(scores, 1)),
        task="tensors",
        outputs={"columns": {"tensor": "prediction:0", "kind": "tensor"}},
        output=None,
        labels=[],
    )
    with workshop.repository.load("raw", Placement(device="cpu")) as net:
        net.warm_up(1)
        with open_gateway(net) as doors, face.open(doors) as client:
            told = face.told(client.get_model_metadata("raw"))["outputs"]
            answer = client.infer("raw", [face.input("input", noise(2, 8, 12))], outputs=face.outputs("columns"))
    shapes = {each["name"]: (each["datatype"], [int(side) for side in each["shape"]]) for each in told}
    assert shapes == {"columns": ("FP32", [-1, 12, 5]), "result_bytes": ("BYTES", [-1])}
    assert answer.as_numpy("columns").shape == (2, 12, 5)


def states(face: Face, client: Any) -> dict[str, str]:
    """The state of each model in the repository's index."""
    told = client.get_model_repository_index()
    models = told if face.name == "http" else face.told(told, of="models")
    return {each["name"]: each["state"] for each in models}


def test_classes_are_told_best_first_by_name(face: Face, workshop: Workshop) -> None:
    """The classification extension: what image clients of Triton print."""
    model = classifier(workshop)
    pictures = noise(2, 8, 12)
    with model, open_gateway(model) as doors, face.open(doors) as client:
        scores = model.infer(pictures)["scores"]
        answer = client.infer("classes", [face.input("input", pictures)], outputs=face.outputs("scores", class_count=2))
        for told, row in zip(answer.as_numpy("scores"), scores, strict=True):
            best = np.argsort(-row, kind="stable")[:2]
            assert [text.decode() for text in told] == [f"{row[each]:f}:{each}:class-{each}" for each in best]


def classifier(workshop: Workshop) -> Model:
    """A real network that scores five classes of a picture."""
    labels = [{"name": f"class-{number}", "colour": [number, 0, 0]} for number in range(5)]
    workshop.add(
        "classes",
        workshop.graph(lambda scores: tf.reduce_mean(scores, (1, 2))),
        task="classification",
        output={"tensor": "prediction:0", "kind": "logits"},
        labels=labels,
    )
    return workshop.repository.load("classes", Placement(device="cpu"))
