"""Models with several outputs, in the TensorFlow Serving protocol."""

import base64
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.tensorflow.runtime import tf
from shared.inference.engine import Outputs
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, Engine, tensor_model

predict_pb2: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata_pb2: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub
TYPES = ("uint8", "int8", "int16", "int32", "int64", "uint32", "half", "bfloat16", "float", "double", "bool", "string")
IMAGES = np.random.default_rng(6).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)


class EveryType(Engine):
    """Returns a few numbers of each image in every type of an output tensor."""

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        numbers = tf.cast(batch[:, 0, :, 0], tf.int32) - 100
        return {f"of_{name}": self.converted(numbers, name) for name in TYPES}

    @staticmethod
    def converted(numbers: Any, name: str) -> Any:
        """Converts whole numbers from -100 to 155 to another type, or to strings."""
        return (tf.strings.as_string(numbers) if name == "string" else tf.cast(numbers, name)).numpy()


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    every = tensor_model(EveryType(), [f"of_{name}" for name in TYPES], "every")
    every.warm_up(1)
    with open_gateway(every, tensor_model(EveryType(), ["of_float"], "cold")) as worker:
        yield worker


def read_json(values: Any) -> Any:
    """Replaces the base64 of strings in a response by bytes."""
    if isinstance(values, dict):
        return base64.b64decode(values["b64"])
    return [read_json(each) for each in values] if isinstance(values, list) else values


@pytest.mark.parametrize("is_row", [True, False])
def test_outputs_are_objects_by_name_over_rest(worker: GatewayWorker, *, is_row: bool) -> None:
    """Row format has the outputs of each image together, column format one tensor for each output."""
    body = {"instances": IMAGES.tolist()} if is_row else {"inputs": {"input": IMAGES.tolist()}}
    response = httpx.post(f"http://{worker.http}/v1/models/every:predict", json=body, timeout=WAIT_S).json()
    for head, values in EveryType().infer(IMAGES).items():
        given = [row[head] for row in response["predictions"]] if is_row else response["outputs"][head]
        assert read_json(given) == values.tolist()


def predict_grpc(worker: GatewayWorker, encoding: str | None = None) -> Any:
    """The PredictResponse to a gRPC call."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "every"
    request.inputs["input"].CopyFrom(tf.make_tensor_proto(IMAGES))
    metadata = () if encoding is None else (("skylane-tensors", encoding),)
    with grpc.insecure_channel(worker.grpc) as channel:
        return PredictionStub(channel).Predict(request, WAIT_S, metadata=metadata)


@pytest.mark.parametrize("encoding", [None, "typed", "content"])
def test_every_type_is_exact_over_grpc(worker: GatewayWorker, encoding: str | None) -> None:
    """TensorFlow's own function reads the outputs of the direct call, in both encodings."""
    response = predict_grpc(worker, encoding)
    for head, values in EveryType().infer(IMAGES).items():
        read = tf.make_ndarray(response.outputs[head])
        assert read.dtype == values.dtype
        assert bool(response.outputs[head].tensor_content) is (encoding == "content" and head != "of_string")
        np.testing.assert_array_equal(read, values)


def test_metadata_has_the_types_found_by_the_warm_up(worker: GatewayWorker) -> None:
    """A manifest does not describe raw output tensors, but generic clients rely on the metadata."""
    request = metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "every"
    signatures = metadata_pb2.SignatureDefMap()
    with grpc.insecure_channel(worker.grpc) as channel:
        assert PredictionStub(channel).GetModelMetadata(request, WAIT_S).metadata["signature_def"].Unpack(signatures)
    outputs = signatures.signature_def["serving_default"].outputs
    types = {name: (info.dtype, [dim.size for dim in info.tensor_shape.dim]) for name, info in outputs.items()}
    assert types == {f"of_{name}": (tf.dtypes.as_dtype(name).as_datatype_enum, [-1, WIDTH]) for name in TYPES}
    rest = httpx.get(f"http://{worker.http}/v1/models/every/metadata", timeout=WAIT_S).json()
    info = rest["metadata"]["signature_def"]["signature_def"]["image"]["outputs"]["of_bfloat16"]
    assert (info["dtype"], [dim["size"] for dim in info["tensor_shape"]["dim"]]) == (
        "DT_BFLOAT16",
        ["-1", f"{WIDTH}"],
    )


def test_metadata_marks_unknown_types(worker: GatewayWorker) -> None:
    """Without a warm-up, types and shapes are unknown until the model has run."""
    body = httpx.get(f"http://{worker.http}/v1/models/cold/metadata", timeout=WAIT_S).json()
    outputs = body["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert outputs["of_float"]["tensor_shape"]["unknown_rank"] is True
