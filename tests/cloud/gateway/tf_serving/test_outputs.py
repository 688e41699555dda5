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

from cloud.engines.engine import Outputs
from cloud.engines.tensorflow.runtime import tf
from tests.support.gateway import WAIT_S, GatewayWorker, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, Engine, tensor_model

predict_pb2: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata_pb2: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub

HEADS = ("means", "counts", "maps")
TYPES = ("uint8", "int8", "int16", "int32", "int64", "uint32", "half", "bfloat16", "float", "double", "bool", "string")
IMAGES = np.random.default_rng(6).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)


class SeveralOutputs(Engine):
    """Returns a vector, a number and a map for each image."""

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        means = batch.mean((1, 2), dtype=np.float32) / np.float32(3)
        means[0, 0] = np.nan if batch[0].max() == 0 else means[0, 0]
        return {
            "means": means,
            "counts": batch.sum((1, 2, 3), dtype=np.int64),
            "maps": batch[..., 0].astype(np.float16),
        }


def direct() -> Outputs:
    """The outputs of the engine for each image separately, as the worker batches them."""
    parts = [SeveralOutputs().infer(IMAGES[n : n + 1]) for n in range(len(IMAGES))]
    return {head: np.concatenate([part[head] for part in parts]) for head in HEADS}


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
    with open_gateway(tensor_model(SeveralOutputs(), HEADS, "several"), every) as worker:
        yield worker


def predict_rest(worker: GatewayWorker, model: str, body: dict[str, Any]) -> Any:
    """The JSON response to a REST call."""
    return httpx.post(f"http://{worker.http}/v1/models/{model}:predict", json=body, timeout=WAIT_S).json()


def test_rows_are_objects_by_name(worker: GatewayWorker) -> None:
    """Row format has the outputs of each image together, as in TensorFlow Serving."""
    rows = predict_rest(worker, "several", {"instances": IMAGES.tolist()})["predictions"]
    expected = direct()
    assert rows == [{head: expected[head][n].tolist() for head in HEADS} for n in range(len(IMAGES))]


def test_columns_are_tensors_by_name(worker: GatewayWorker) -> None:
    """Column format has one tensor per output. Floats are exact, NaN is written, and strings are in base64."""
    tensors = predict_rest(worker, "several", {"inputs": {"input": IMAGES.tolist()}})["outputs"]
    for head, values in direct().items():
        np.testing.assert_array_equal(np.array(tensors[head], values.dtype), values)
    black = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8).tolist()
    assert np.isnan(predict_rest(worker, "several", {"inputs": black})["outputs"]["means"][0][0])
    tensors = predict_rest(worker, "every", {"inputs": IMAGES.tolist()})["outputs"]
    expected = EveryType().infer(IMAGES)
    assert [[base64.b64decode(each["b64"]) for each in row] for row in tensors["of_string"]] == expected[
        "of_string"
    ].tolist()
    assert tensors["of_bfloat16"] == expected["of_bfloat16"].tolist()


def predict_grpc(worker: GatewayWorker, model: str, encoding: str | None = None) -> Any:
    """The PredictResponse to a gRPC call."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["input"].CopyFrom(tf.make_tensor_proto(IMAGES))
    metadata = () if encoding is None else (("skylane-tensors", encoding),)
    with grpc.insecure_channel(worker.grpc) as channel:
        return PredictionStub(channel).Predict(request, WAIT_S, metadata=metadata)


@pytest.mark.parametrize("encoding", [None, "typed", "content"])
def test_every_type_is_exact_over_grpc(worker: GatewayWorker, encoding: str | None) -> None:
    """TensorFlow's own function reads the outputs of the direct call, in both encodings."""
    response = predict_grpc(worker, "every", encoding)
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
    body = httpx.get(f"http://{worker.http}/v1/models/several/metadata", timeout=WAIT_S).json()
    outputs = body["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert set(outputs) == set(HEADS)
    assert outputs["means"]["tensor_shape"]["unknown_rank"] is True
