"""A model's server is another's machine: nonsense from it fails its batch, and takes neither the memory nor the worker."""

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.engine import EngineError, InferenceError, Placement
from cloud.engines.remote.tf_serving import TfServingEngine
from cloud.engines.remote.triton import TritonEngine
from cloud.models.manifest import Manifest
from shared.encoding.bounded_protobuf import MAX_LIST_BYTES
from shared.encoding.protobuf import message_class
from shared.messages.tensors import MAX_BYTES

grpc: Any = import_module("grpc")

HEIGHT, WIDTH = 4, 6
PICTURE = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
INFER, TENSOR = message_class("inference.ModelInferResponse"), message_class("tensorflow.TensorProto")
METADATA = message_class("inference.ModelMetadataResponse")
Says = Callable[[Any], bytes]  # What a method answers; it gets the call's context.


@contextmanager
def engine(form: str, says: dict[str, Says], **section: Any) -> Iterator[Any]:
    """An engine whose server says so, by the method's name; what it says of the model is right where that is left out.

    `section`: of the manifest's input.
    """
    methods = {"ModelMetadata": lambda _: triton_told(), "GetModelMetadata": lambda _: serving_told(), **says}

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is Any here.
        def service(self, details: Any) -> Any:
            said = methods[details.method.rpartition("/")[2]]
            return grpc.unary_unary_rpc_method_handler(lambda _, context: said(context))

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
    """Of a model of two raw tensors."""
    return Manifest.model_validate(
        {
            "task": "tensors",
            "format": form,
            "remote": {"address": address, "model": "there"},
            "input": {"tensor": "input", "height": HEIGHT, "width": WIDTH, **section},
            "outputs": {name: {"tensor": name, "kind": "tensor"} for name in ("one", "two")},
        }
    )


def triton_told(outputs: tuple[str, ...] = ("one", "two"), sides: int = 2, version: str = "3") -> bytes:
    """What a server of the Open Inference Protocol says of its model."""
    told = METADATA(name="there", versions=[version])
    told.inputs.add(name="input", datatype="UINT8", shape=[-1, HEIGHT, WIDTH, 3])
    for name in outputs:
        told.outputs.add(name=name, datatype="UINT8", shape=[-1] * sides)
    return bytes(told.SerializeToString())


def serving_told() -> bytes:
    """What TensorFlow Serving says."""
    signatures = message_class("tensorflow.serving.SignatureDefMap")()
    ends = signatures.signature_def["serving_default"]
    ends.inputs["input"].dtype = 4
    for side in (-1, HEIGHT, WIDTH, 3):
        ends.inputs["input"].tensor_shape.dim.add(size=side)
    for name in ("one", "two"):
        ends.outputs[name].dtype = 4
        ends.outputs[name].tensor_shape.unknown_rank = True
    told = message_class("tensorflow.serving.GetModelMetadataResponse")()
    told.metadata["signature_def"].value = signatures.SerializeToString()
    return bytes(told.SerializeToString())


def inferred(**tensor: Any) -> bytes:
    """A ModelInferResponse of one tensor."""
    told = INFER()
    told.outputs.add(name="one", **tensor)
    return bytes(told.SerializeToString())


def predicted(*names: str, sides: tuple[int, ...] = (), **tensor: Any) -> bytes:
    """A PredictResponse in which all outputs are this tensor."""
    told = message_class("tensorflow.serving.PredictResponse")()
    for name in names:
        told.outputs[name].CopyFrom(TENSOR(dtype=4, **tensor))
        for side in sides:
            told.outputs[name].tensor_shape.dim.add(size=side)
    return bytes(told.SerializeToString())


@pytest.mark.parametrize(
    ("form", "answer", "told"),
    [
        ("open_inference", b"\xff\xff", "cannot be read"),
        ("open_inference", b"\x2a\x00" * 100_000, "more than 16384 fields"),
        ("open_inference", (b"\x2a\x80\x20" + b"\x2a\x00" * 2048) * 10, "more than 16384 fields"),
        (
            "open_inference",
            inferred(datatype="INT64", shape=[1], contents={"int64_contents": np.zeros(MAX_LIST_BYTES + 1, np.int8)}),
            "lists of whole numbers",
        ),
        ("open_inference", inferred(datatype="UINT8", shape=[1 << 40, 1 << 40]), "side"),
        ("open_inference", inferred(datatype="UINT8", shape=[1] * 3000), "3000 sides"),
        ("open_inference", inferred(datatype="\x1b[2J", shape=[1]), r"'\\x1b\[2J' is not spoken"),
        ("tensorflow_serving", b"\xff\xff", "cannot be read"),
        ("tensorflow_serving", b"\x0a\x00" * 100_000, "more than 16384 fields"),
        ("tensorflow_serving", predicted("one", sides=(1 << 62,) * 300), "300 sides"),
        ("tensorflow_serving", predicted("one", "two", sides=(MAX_BYTES,)), "more than 268435456 bytes"),
        ("tensorflow_serving", predicted("one", "two", sides=(0, 1 << 62, 1 << 62)), "more than 268435456"),
        ("tensorflow_serving", predicted("one", int_val=[1]), "of shape .. to 1 pictures"),
    ],
    ids=lambda given: f"{len(given)} bytes" if isinstance(given, bytes) else given,  # A map's order differs by process.
)  # fmt: skip
def test_an_answer_that_would_break_the_worker_fails_its_batch(form: str, answer: bytes, told: str) -> None:
    """Two bytes can take a hundred, a number of thousands of digits cannot be told, and a shape costs nothing to claim."""
    says: dict[str, Says] = dict.fromkeys(("ModelInfer", "Predict"), lambda _: answer)
    with engine(form, says) as opened:
        for _ in range(2):
            with pytest.raises(InferenceError, match=told) as caught:
                opened.infer(PICTURE)
            assert len(str(caught.value)) < 400
            assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("told_of_it", "told"),
    [
        (b"\x22\x00" * 100_000, "more than 16384 fields"),
        (triton_told(("one", "two", "t\x1b[2J")), "a name that is not readable"),
        (triton_told(("one", "two", "t" * 300)), "of more than 256 characters"),
        (triton_told(version="\x1b[2J"), "a name that is not readable"),
        (triton_told(sides=40), "more than 8 sides"),
        (triton_told(tuple(str(number) for number in range(100))), "100 tensors"),
    ],
)
def test_what_a_server_says_of_its_model_is_bounded(told_of_it: bytes, told: str) -> None:
    """It stands in messages, logs and hashes, and is kept."""
    with pytest.raises(EngineError, match=told), engine("open_inference", {"ModelMetadata": lambda _: told_of_it}):
        pass


@pytest.mark.parametrize(
    ("datatype", "shape", "told"),
    [
        ("BYTES", [1], "'scale' takes strings"),
        ("BF16", [1], "'scale' takes a type that is not spoken here"),
        ("FP32", [1, 1 << 50], "'scale' takes more than 268435456 bytes"),
    ],
)
def test_a_constant_that_no_call_carries_is_refused_at_once(datatype: str, shape: list[int], told: str) -> None:
    """It is made for each batch: of such an input that ended the worker, or took its memory."""
    says = METADATA.FromString(triton_told())
    says.inputs.add(name="scale", datatype=datatype, shape=shape)
    answer = bytes(says.SerializeToString())
    opened = engine("open_inference", {"ModelMetadata": lambda _: answer}, constants={"scale": 1.0})
    with pytest.raises(EngineError, match=told), opened:
        pass


def test_a_servers_words_are_shown_and_not_obeyed() -> None:
    """They come to stand in the worker's log, and on a vehicle's terminal."""

    def refuse(context: Any) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "\x1b[2J" + "x" * 4000)
        raise AssertionError

    with engine("open_inference", {"ModelInfer": refuse}) as opened:
        with pytest.raises(InferenceError, match=r"INTERNAL:  \[2Jxxx") as caught:
            opened.infer(PICTURE)
        assert len(str(caught.value)) < 400


def test_a_host_called_unix_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To gRPC alone `unix:80` is the file called 80."""
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
def test_an_address_that_is_none_is_refused_with_the_reason(address: str) -> None:
    """Before anybody is called, and no secret or control character is shown in whole."""
    with pytest.raises(ValueError, match=r"remote\.address") as caught:
        manifest("open_inference", address)
    assert "\x1b" not in str(caught.value)
