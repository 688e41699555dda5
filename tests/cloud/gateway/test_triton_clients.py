"""The Open Inference Protocol, with Triton's clients."""

from collections.abc import Iterator
from importlib import import_module
from socket import AF_INET
from typing import Any, NamedTuple

import cv2
import numpy as np
import psutil
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.inference.model import Model
from shared.models.manifest import Placement
from shared.network.endpoint import is_loopback
from tests.support import tiny_model
from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH
from tests.support.workshop import Workshop

TritonError: Any = import_module("tritonclient.utils").InferenceServerException


class Transport(NamedTuple):
    """gRPC or HTTP, with the matching library of Triton."""

    name: str
    library: Any  # tritonclient.grpc or tritonclient.http; both have the same functions.

    def open(self, worker: GatewayWorker) -> Any:
        """Creates a client; a context manager."""
        return self.library.InferenceServerClient(getattr(worker, self.name))

    def input(self, name: str, values: Any, datatype: str = "UINT8", **keywords: Any) -> Any:
        """An input with its values."""
        tensor = self.library.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values, **keywords)
        return tensor

    def images(self, *images: bytes) -> Any:
        """An input with encoded images."""
        return self.input("image_bytes", np.array(images, object), "BYTES")

    def outputs(self, *names: str, **keywords: Any) -> Any:
        """Requested outputs."""
        return [self.library.InferRequestedOutput(name, **keywords) for name in names]

    def as_json(self, message: Any, of: str | None = None) -> Any:
        """Converts a message of the gRPC client, or its field `of`, to the form of the HTTP client."""
        if self.name == "http":
            return message
        document: Any = import_module("google.protobuf.json_format").MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return document if of is None else document[of]


@pytest.fixture(name="transport", params=["grpc", "http"])
def _transport(request: pytest.FixtureRequest) -> Transport:
    return Transport(request.param, import_module(f"tritonclient.{request.param}"))


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    with open_gateway(tiny_model.model(), tiny_model.model(name="other", version="1.2")) as worker:
        yield worker


@pytest.fixture(name="client")
def _client(transport: Transport, worker: GatewayWorker) -> Iterator[Any]:
    with transport.open(worker) as client:
        yield client


def noise(count: int, height: int = HEIGHT, width: int = WIDTH) -> Any:
    """Random images, uint8 N×H×W×3."""
    return np.random.default_rng(3).integers(0, 256, (count, height, width, 3), np.uint8)


def png(image: Any) -> bytes:
    """Encodes an RGB image as PNG."""
    return bytes(cv2.imencode(".png", image[..., ::-1])[1])


def test_health_covers_the_server_and_each_model(transport: Transport, client: Any) -> None:
    """Load balancers call these checks before they send anything."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("tiny", "9")
    assert not client.is_model_ready("nobody's")
    assert transport.as_json(client.get_server_metadata())["name"] == "skylane"


def test_metadata_has_every_tensor(transport: Transport, client: Any) -> None:
    """Generic clients construct their calls from it."""
    metadata = transport.as_json(client.get_model_metadata("tiny"))
    shapes = {each["name"]: (each["datatype"], [*map(int, each["shape"])]) for each in metadata["inputs"]}
    assert shapes == {"input": ("UINT8", [-1, HEIGHT, WIDTH, 3]), "image_bytes": ("BYTES", [-1])}
    shapes = {each["name"]: (each["datatype"], [*map(int, each["shape"])]) for each in metadata["outputs"]}
    assert shapes == {"mask": ("UINT8", [-1, HEIGHT, WIDTH]), "result_bytes": ("BYTES", [-1])}
    assert metadata["versions"] == ["1"]


def test_the_configuration_describes_batch_and_inputs(transport: Transport, client: Any) -> None:
    """Load generators read the batch size, and which input is optional, from it."""
    config = transport.as_json(client.get_model_config("tiny", "1"), of="config")
    assert config["max_batch_size"] == 64
    pixels, encoded = config["input"]
    assert (pixels["data_type"], [*map(int, pixels["dims"])]) == ("TYPE_UINT8", [HEIGHT, WIDTH, 3])
    assert (encoded["data_type"], encoded["optional"]) == ("TYPE_STRING", True)
    assert [each["name"] for each in config["output"]] == ["mask", "result_bytes"]


def test_statistics_count_the_frames_of_each_model(transport: Transport) -> None:
    """Load generators read from them how long each stage took."""
    with open_gateway(tiny_model.model(), tiny_model.model(name="other")) as worker, transport.open(worker) as client:
        client.infer("tiny", [transport.input("input", noise(3))])
        with pytest.raises(TritonError):
            client.infer("tiny", [transport.images(b"not compressed")], parameters={"codec": "lz4"})
        models = transport.as_json(client.get_inference_statistics())["model_stats"]
        (single,) = transport.as_json(client.get_inference_statistics("other", "1"))["model_stats"]
        with pytest.raises(TritonError, match="none is not served"):
            client.get_inference_statistics("none")
    assert [each["name"] for each in models] == ["other", "tiny"]
    stats = models[1]["inference_stats"]
    assert [int(each["inference_count"]) for each in (*models, single)] == [0, 3, 0]
    assert 1 <= int(models[1]["execution_count"]) <= 3
    assert (int(stats["success"]["count"]), int(stats["fail"]["count"])) == (3, 1)
    parts = [int(stats[part]["ns"]) for part in ("queue", "compute_input", "compute_infer", "compute_output")]
    assert 0 < sum(parts) <= int(stats["success"]["ns"])


@pytest.mark.parametrize("version", ["", "1"])
def test_a_batch_keeps_its_order_and_id(transport: Transport, client: Any, version: str) -> None:
    """Each image is a separate frame in the worker, but the outputs keep the order of the images."""
    images = noise(5)
    result = client.infer("tiny", [transport.input("input", images)], model_version=version, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("mask"), images[..., 0])
    response = transport.as_json(result.get_response())
    assert (response["model_name"], response["model_version"], response["id"]) == ("tiny", "1", "seven")


def test_encoded_images_return_outputs_or_packed_results(transport: Transport, client: Any) -> None:
    """Encoded images and packed results save most of the transferred bytes."""
    images = noise(2)
    tensors = [transport.images(*map(png, images))]
    result = client.infer("tiny", tensors, outputs=transport.outputs("mask"))
    np.testing.assert_array_equal(result.as_numpy("mask"), images[..., 0])
    for codec in ("png", "zstd"):
        parameters = {"mask_codec": codec}
        result = client.infer("tiny", tensors, outputs=transport.outputs("result_bytes"), parameters=parameters)
        assert result.as_numpy("mask") is None  # Only the requested output is sent.
        for packed, image in zip(result.as_numpy("result_bytes"), images, strict=True):
            np.testing.assert_array_equal(image_codecs.decode_mask(packed, codec, (HEIGHT, WIDTH)), image[..., 0])
    compressed = transport.images(bytes(image_codecs.encode(images[0], Layout.RGB8, "lz4", 90)))
    result = client.infer("tiny", [compressed], parameters={"codec": "lz4"})
    np.testing.assert_array_equal(result.as_numpy("mask")[0], images[0][..., 0])


def code(transport: Transport, http: int, grpc: str) -> str:
    """The status of an error in Triton's client."""
    return str(http) if transport.name == "http" else f"StatusCode.{grpc}"


INVALID_CALLS: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "model": ({"model": "none"}, 404, "NOT_FOUND", "none is not served"),
    "version": ({"version": "9"}, 404, "NOT_FOUND", "tiny version 9 is not served"),
    "dtype": ({"dtype": "float32", "datatype": "FP32"}, 400, "INVALID_ARGUMENT", "'input' is FP32: send UINT8"),
    "output": ({"outputs": ["scores"]}, 400, "INVALID_ARGUMENT", "no output scores: request mask"),
    "codec": ({"parameters": {"mask_codec": "jpeg"}, "outputs": ["result_bytes"]}, 422, "INVALID_ARGUMENT", "codec"),
    "parameter": ({"parameters": {"mask_codec": 7}}, 400, "INVALID_ARGUMENT", "parameter mask_codec is '7'"),
    "timeout": ({"timeout": 1}, 408, "DEADLINE_EXCEEDED", "deadline"),
}


@pytest.mark.parametrize("case", INVALID_CALLS)
def test_an_invalid_call_has_a_status_and_a_message(transport: Transport, client: Any, case: str) -> None:
    """Triton's client raises its own error, whose message says what is expected."""
    options, http, grpc, text = INVALID_CALLS[case]
    images = noise(1).astype(options.get("dtype", "uint8"))
    tensor = transport.input("input", images, options.get("datatype", "UINT8"))
    with pytest.raises(TritonError, match=text) as raised:
        client.infer(
            options.get("model", "tiny"),
            [tensor],
            model_version=options.get("version", ""),
            outputs=transport.outputs(*options["outputs"]) if "outputs" in options else None,
            parameters=options.get("parameters"),
            timeout=options.get("timeout"),
        )
    assert raised.value.status() == code(transport, http, grpc)


def test_a_duplicate_input_is_an_error(transport: Transport, client: Any) -> None:
    """Otherwise the last one would silently replace the first."""
    tensor = transport.input("input", noise(1))
    with pytest.raises(TritonError, match="duplicate input input"):
        client.infer("tiny", [tensor, tensor])


def test_shared_memory_is_rejected(transport: Transport, client: Any) -> None:
    """The client must learn that its data did not arrive."""
    tensor = transport.library.InferInput("input", [1, HEIGHT, WIDTH, 3], "UINT8")
    tensor.set_shared_memory("region", HEIGHT * WIDTH * 3)
    with pytest.raises(TritonError, match="is in shared memory"):
        client.infer("tiny", [tensor])
    requested = transport.outputs("mask")
    requested[0].set_shared_memory("region", HEIGHT * WIDTH)
    with pytest.raises(TritonError, match="output 'mask' is in shared memory"):
        client.infer("tiny", [transport.input("input", noise(1))], outputs=requested)


def test_models_are_listed_loaded_and_unloaded(transport: Transport, workshop: Workshop) -> None:
    """The calls use the same repository as control requests over MQTT."""
    workshop.add("net", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    loader = ModelLoader(workshop.repository, Placement(device="cpu"), warm_up_runs=1)
    images = noise(1, 8, 12)
    with open_gateway(loader=loader) as worker, transport.open(worker) as client:
        assert states(transport, client) == {"net": "UNAVAILABLE"}
        client.load_model("net")
        assert states(transport, client) == {"net": "READY"}
        assert client.infer("net", [transport.input("input", images)]).as_numpy("mask").shape == (1, 8, 12)
        client.unload_model("net")
        assert not client.is_model_ready("net")
        with pytest.raises(TritonError, match="no model 'nets'"):
            client.load_model("nets")
        with pytest.raises(TritonError, match="parameter config is not supported"):
            client.load_model("net", config="{}")


def test_another_machine_needs_a_token_to_unload_a_model(transport: Transport) -> None:
    """A call to this machine's network address does not come from a loopback address."""
    addresses = [each.address for many in psutil.net_if_addrs().values() for each in many if each.family == AF_INET]
    external = next((address for address in addresses if not is_loopback(address)), None)
    if external is None:
        pytest.skip("this machine has only a loopback address")
    with open_gateway(tiny_model.model(), http="0.0.0.0:0", grpc="0.0.0.0:0") as worker:
        address = f"{external}:{worker.node.ports[transport.name]}"
        with transport.library.InferenceServerClient(address) as client:
            assert states(transport, client) == {"tiny": "READY"}
            with pytest.raises(TritonError, match="from the worker's own machine only, or with a token"):
                client.unload_model("tiny")
            assert states(transport, client) == {"tiny": "READY"}


def test_metadata_has_the_types_found_by_the_warm_up(transport: Transport, workshop: Workshop) -> None:
    """A manifest does not describe raw output tensors, but a client must know them before its first call."""
    workshop.add(
        "raw",
        workshop.graph(lambda scores: tf.reduce_mean(scores, 1)),
        task="tensors",
        outputs={"columns": {"tensor": "prediction:0", "kind": "tensor"}},
        output=None,
        labels=[],
    )
    with workshop.open("raw", Placement(device="cpu")) as net:
        net.warm_up(1)
        with open_gateway(net) as worker, transport.open(worker) as client:
            outputs = transport.as_json(client.get_model_metadata("raw"))["outputs"]
            result = client.infer(
                "raw", [transport.input("input", noise(2, 8, 12))], outputs=transport.outputs("columns")
            )
    shapes = {each["name"]: (each["datatype"], [*map(int, each["shape"])]) for each in outputs}
    assert shapes == {"columns": ("FP32", [-1, 12, 5]), "result_bytes": ("BYTES", [-1])}
    assert result.as_numpy("columns").shape == (2, 12, 5)


def states(transport: Transport, client: Any) -> dict[str, str]:
    """The state of each model in the repository's index."""
    models = transport.as_json(client.get_model_repository_index(), of="models")
    return {each["name"]: each["state"] for each in models}


def test_classes_are_returned_best_first(transport: Transport, workshop: Workshop) -> None:
    """The classification extension returns the strings that Triton's image clients print."""
    model = classifier(workshop)
    images = noise(2, 8, 12)
    with model, open_gateway(model) as worker, transport.open(worker) as client:
        scores = model.infer(images)["scores"]
        result = client.infer(
            "classes", [transport.input("input", images)], outputs=transport.outputs("scores", class_count=2)
        )
        for classes, row in zip(result.as_numpy("scores"), scores, strict=True):
            best = np.argsort(-row, kind="stable")[:2]
            assert [text.decode() for text in classes] == [f"{row[each]:f}:{each}:class-{each}" for each in best]


def classifier(workshop: Workshop) -> Model:
    """A real network that returns scores of five classes."""
    labels = [{"name": f"class-{number}", "colour": [number, 0, 0]} for number in range(5)]
    workshop.add(
        "classes",
        workshop.graph(lambda scores: tf.reduce_mean(scores, (1, 2))),
        task="classification",
        output={"tensor": "prediction:0", "kind": "logits"},
        labels=labels,
    )
    return workshop.open("classes", Placement(device="cpu"))
