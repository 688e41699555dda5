"""Malformed and oversized replies of a model server: they fail the batch, and harm neither the memory nor the worker."""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.remote.tf_serving import TfServingEngine
from cloud.engines.remote.triton import TritonEngine
from shared.inference.engine import EngineError, InferenceError
from shared.messages.protobuf import MAX_LIST_BYTES, message_class
from shared.messages.tensors import MAX_BYTES
from shared.models.manifest import Manifest, Placement

grpc: Any = import_module("grpc")

HEIGHT, WIDTH = 4, 6
IMAGE = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
INFER, TENSOR = message_class("inference.ModelInferResponse"), message_class("tensorflow.TensorProto")
METADATA = message_class("inference.ModelMetadataResponse")
Method = Callable[[Any], bytes]  # Takes the context of the call, returns the reply.


@contextmanager
def engine(form: str, replies: dict[str, Method], **section: Any) -> Iterator[Any]:
    """An engine whose server has the given methods; by default, the metadata is correct.

    `section` replaces keys of the manifest's input section.
    """
    methods = {
        "ModelMetadata": lambda _: triton_metadata(),
        "GetModelMetadata": lambda _: serving_metadata(),
        **replies,
    }

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is Any here.
        def service(self, details: Any) -> Any:
            method = methods[details.method.rpartition("/")[2]]
            return grpc.unary_unary_rpc_method_handler(lambda _, context: method(context))

    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, options=(("grpc.max_send_message_length", -1),))
        server.add_generic_rpc_handlers((Handler(),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            kind = TritonEngine if form == "open_inference" else TfServingEngine
            opened = kind(Path("model.yaml"), manifest(form, address, **section), Placement())
            try:
                yield opened
            finally:
                opened.close()
        finally:
            server.stop(0).wait()


def manifest(form: str, address: str, **section: Any) -> Manifest:
    """Returns the manifest of a model with two raw tensors."""
    return Manifest.model_validate(
        {
            "task": "tensors",
            "format": form,
            "remote": {"address": address, "model": "there"},
            "input": {"tensor": "input", "height": HEIGHT, "width": WIDTH, **section},
            "outputs": {name: {"tensor": name, "kind": "tensor"} for name in ("one", "two")},
        }
    )


def triton_metadata(outputs: tuple[str, ...] = ("one", "two"), sides: int = 2, version: str = "3") -> bytes:
    """Returns a ModelMetadataResponse of the Open Inference Protocol."""
    response = METADATA(name="there", versions=[version])
    response.inputs.add(name="input", datatype="UINT8", shape=[-1, HEIGHT, WIDTH, 3])
    for name in outputs:
        response.outputs.add(name=name, datatype="UINT8", shape=[-1] * sides)
    return bytes(response.SerializeToString())


def serving_metadata() -> bytes:
    """Returns a GetModelMetadataResponse of TensorFlow Serving."""
    signatures = message_class("tensorflow.serving.SignatureDefMap")()
    signature = signatures.signature_def["serving_default"]
    signature.inputs["input"].dtype = 4
    for side in (-1, HEIGHT, WIDTH, 3):
        signature.inputs["input"].tensor_shape.dim.add(size=side)
    for name in ("one", "two"):
        signature.outputs[name].dtype = 4
        signature.outputs[name].tensor_shape.unknown_rank = True
    response = message_class("tensorflow.serving.GetModelMetadataResponse")()
    response.metadata["signature_def"].value = signatures.SerializeToString()
    return bytes(response.SerializeToString())


def infer_response(**tensor: Any) -> bytes:
    """Returns a ModelInferResponse with one tensor."""
    response = INFER()
    response.outputs.add(name="one", **tensor)
    return bytes(response.SerializeToString())


def predict_response(*names: str, sides: tuple[int, ...] = (), **tensor: Any) -> bytes:
    """Returns a PredictResponse whose outputs all have this tensor."""
    response = message_class("tensorflow.serving.PredictResponse")()
    for name in names:
        response.outputs[name].CopyFrom(TENSOR(dtype=4, **tensor))
        for side in sides:
            response.outputs[name].tensor_shape.dim.add(size=side)
    return bytes(response.SerializeToString())


@pytest.mark.parametrize(
    ("form", "reply", "message"),
    [
        ("open_inference", b"\xff\xff", "cannot be read"),
        ("open_inference", b"\x2a\x00" * 100_000, "more than 16384 fields"),
        ("open_inference", (b"\x2a\x80\x20" + b"\x2a\x00" * 2048) * 10, "more than 16384 fields"),
        (
            "open_inference",
            infer_response(datatype="INT64", shape=[1], contents={"int64_contents": np.zeros(MAX_LIST_BYTES + 1, np.int8)}),
            "lists of integers",
        ),
        ("open_inference", infer_response(datatype="UINT8", shape=[1 << 40, 1 << 40]), "dimension"),
        ("open_inference", infer_response(datatype="UINT8", shape=[1] * 3000), "3000 dimensions"),
        ("open_inference", infer_response(datatype="\x1b[2J", shape=[1]), r"'\\x1b\[2J' is not supported"),
        ("tensorflow_serving", b"\xff\xff", "cannot be read"),
        ("tensorflow_serving", b"\x0a\x00" * 100_000, "more than 16384 fields"),
        ("tensorflow_serving", predict_response("one", sides=(1 << 62,) * 300), "300 dimensions"),
        ("tensorflow_serving", predict_response("one", "two", sides=(MAX_BYTES,)), "more than 268435456 bytes"),
        ("tensorflow_serving", predict_response("one", "two", sides=(0, 1 << 62, 1 << 62)), "more than 268435456"),
        ("tensorflow_serving", predict_response("one", int_val=[1]), "of shape .. for 1 images"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,  # The order of a map varies.
)  # fmt: skip
def test_a_malformed_or_oversized_reply_fails_its_batch(form: str, reply: bytes, message: str) -> None:
    """A few bytes can expand to a hundred times their size, or declare a huge shape; the error text stays short."""
    replies: dict[str, Method] = dict.fromkeys(("ModelInfer", "Predict"), lambda _: reply)
    with engine(form, replies) as opened:
        for _ in range(2):
            with pytest.raises(InferenceError, match=message) as caught:
                opened.infer(IMAGE)
            assert len(str(caught.value)) < 700
            assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"\x22\x00" * 100_000, "more than 16384 fields"),
        (triton_metadata(("one", "two", "t\x1b[2J")), "a name that is not printable"),
        (triton_metadata(("one", "two", "t" * 300)), "of more than 256 characters"),
        (triton_metadata(version="\x1b[2J"), "a name that is not printable"),
        (triton_metadata(sides=40), "more than 8 dimensions"),
        (triton_metadata(tuple(str(number) for number in range(100))), "100 tensors"),
    ],
)
def test_model_metadata_is_limited(metadata: bytes, message: str) -> None:
    """The metadata appears in error messages, logs and hashes."""
    with pytest.raises(EngineError, match=message), engine("open_inference", {"ModelMetadata": lambda _: metadata}):
        pass


@pytest.mark.parametrize(
    ("datatype", "shape", "message"),
    [
        ("BYTES", [1], "'scale' takes strings"),
        ("BF16", [1], "'scale' takes an unsupported type"),
        ("FP32", [1, 1 << 50], "'scale' takes more than 268435456 bytes"),
    ],
)
def test_an_impossible_constant_input_is_refused_when_loading(datatype: str, shape: list[int], message: str) -> None:
    """The constant is created for each batch, so an unlimited one would exhaust the memory."""
    response = METADATA.FromString(triton_metadata())
    response.inputs.add(name="scale", datatype=datatype, shape=shape)
    metadata = bytes(response.SerializeToString())
    opened = engine("open_inference", {"ModelMetadata": lambda _: metadata}, constants={"scale": 1.0})
    with pytest.raises(EngineError, match=message), opened:
        pass


def test_control_characters_in_a_servers_error_are_removed() -> None:
    """The text appears in the worker's log and on a vehicle's terminal."""

    def refuse(context: Any) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "\x1b[2J" + "x" * 4000)
        raise AssertionError

    with engine("open_inference", {"ModelInfer": refuse}) as opened:
        with pytest.raises(InferenceError, match=r"INTERNAL:  \[2Jxxx") as caught:
            opened.infer(IMAGE)
        assert len(str(caught.value)) < 700


def test_a_host_named_unix_is_not_a_socket_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC itself would take `unix:80` for the socket file `80`."""
    monkeypatch.chdir(tmp_path)
    with futures.ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        server.add_insecure_port("unix:80")
        server.start()
        try:
            remote = manifest("open_inference", "unix:80")
            assert remote.remote is not None
            short = remote.model_copy(update={"remote": remote.remote.model_copy(update={"connect_timeout_s": 0.3})})
            with pytest.raises(EngineError, match=r"within 300 ms.* at unix:80\?"):
                TritonEngine(Path("model.yaml"), short, Placement())
        finally:
            server.stop(0).wait()


@pytest.mark.parametrize(
    "address",
    [
        *("/etc/passwd", "unix:/run/x", "unix:///run/x:1", "user:word@host:1", "http://a:1", "a:1/x"),
        *("a:0", "a:65536", "a:99999999999", "[::1:1", ":1", "", "x" * 5000 + ":1"),
        *("a b:1", "a:1\n", "a\x1b[2J:1", "\u0130:1"),
    ],
)
def test_an_invalid_address_is_refused_by_the_manifest(address: str) -> None:
    """The error names the key and contains no control characters."""
    with pytest.raises(ValueError, match=r"remote\.address") as caught:
        manifest("open_inference", address)
    assert "\x1b" not in str(caught.value)
