"""A model with several outputs at TensorFlow Serving's doors."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs
from cloud.engines.tensorflow.library import tf
from cloud.models.manifest import InputSection, Manifest, OutputKind, OutputSection
from cloud.models.model import Model
from shared.messages.model_card import Task
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import CARD, HEIGHT, WIDTH, Engine

predict: Any = import_module("tensorflow_serving.apis.predict_pb2")
metadata: Any = import_module("tensorflow_serving.apis.get_model_metadata_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub

WAIT_S = 60.0
HEADS = ("means", "counts", "maps")
TYPES = ("uint8", "int8", "int16", "int32", "int64", "uint32", "half", "bfloat16", "float", "double", "bool", "string")
PICTURES = np.random.default_rng(6).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)


class Several(Engine):
    """Answers a vector, a number and a map of each picture."""

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
    """The direct call's answers, a picture at a time, as they are batched here."""
    parts = [Several().infer(PICTURES[n : n + 1]) for n in range(len(PICTURES))]
    return {head: np.concatenate([part[head] for part in parts]) for head in HEADS}


class EveryType(Engine):
    """Answers a few numbers of each picture in every type that TensorFlow has for a head."""

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        numbers = tf.cast(batch[:, 0, :, 0], tf.int32) - 100
        return {f"of_{name}": self.answered(numbers, name) for name in TYPES}

    @staticmethod
    def answered(numbers: Any, name: str) -> Any:
        """Whole numbers -100 to 155 as another type; strings tell them."""
        return (tf.strings.as_string(numbers) if name == "string" else tf.cast(numbers, name)).numpy()


def of_tensors(name: str, heads: Sequence[str], engine: Engine) -> Model:
    """A model of raw tensors."""
    manifest = Manifest(
        task=Task.TENSORS,
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        outputs={head: OutputSection(tensor=f"{head}:0", kind=OutputKind.TENSOR) for head in heads},
    )
    return Model(manifest, replace(CARD, name=name, task=Task.TENSORS, outputs=tuple(heads)), engine)


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    every = of_tensors("every", [f"of_{name}" for name in TYPES], EveryType())
    every.warm_up(1)
    with open_gateway(of_tensors("several", HEADS, Several()), every) as doors:
        yield doors


def posted(doors: Doors, body: dict[str, Any]) -> Any:
    """The JSON that a call is answered with."""
    return httpx.post(f"http://{doors.http}/v1/models/several:predict", json=body, timeout=WAIT_S).json()


def test_rows_are_objects_by_name(doors: Doors) -> None:
    """Several outputs of a picture stand together in row format, as TensorFlow Serving has them."""
    rows = posted(doors, {"instances": PICTURES.tolist()})["predictions"]
    expected = direct()
    assert rows == [{head: expected[head][n].tolist() for head in HEADS} for n in range(len(PICTURES))]


def test_columns_are_tensors_by_name(doors: Doors) -> None:
    """In column format each output stands as a whole; its floats come back as they were."""
    told = posted(doors, {"inputs": {"input": PICTURES.tolist()}})["outputs"]
    for head, values in direct().items():
        np.testing.assert_array_equal(np.array(told[head], values.dtype), values)


def test_numbers_that_json_has_not_are_written_as_tensorflow_serving_does(doors: Doors) -> None:
    """NaN is a result too."""
    black = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8).tolist()
    response = httpx.post(f"http://{doors.http}/v1/models/several:predict", json={"inputs": black}, timeout=WAIT_S)
    assert np.isnan(json.loads(response.text)["outputs"]["means"][0][0])


def predicted(doors: Doors, model: str, form: str | None = None) -> Any:
    """A PredictResponse."""
    request = predict.PredictRequest()
    request.model_spec.name = model
    request.inputs["input"].CopyFrom(tf.make_tensor_proto(PICTURES))
    told = () if form is None else (("skylane-tensors", form),)
    with grpc.insecure_channel(doors.grpc) as channel:
        return PredictionStub(channel).Predict(request, WAIT_S, metadata=told)


def test_several_outputs_come_as_lists_over_grpc(doors: Doors) -> None:
    """Each in the list of its type, which many a client reads itself."""
    answer = predicted(doors, "several")
    expected = direct()
    assert set(answer.outputs) == set(HEADS)
    assert list(answer.outputs["means"].float_val) == expected["means"].ravel().tolist()
    assert list(answer.outputs["counts"].int64_val) == expected["counts"].ravel().tolist()
    assert list(answer.outputs["maps"].half_val) == expected["maps"].view(np.uint16).ravel().tolist()


@pytest.mark.parametrize("form", [None, "typed", "content"])
def test_every_type_comes_bit_by_bit_over_grpc(doors: Doors, form: str | None) -> None:
    """Whatever a model answers in, TensorFlow's own tool reads what the direct call gives, in either form."""
    answer = predicted(doors, "every", form)
    for head, values in EveryType().infer(PICTURES).items():
        read = tf.make_ndarray(answer.outputs[head])
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)


def test_strings_come_in_base64_over_rest(doors: Doors) -> None:
    """A model may answer words; JSON has no bytes."""
    body = {"inputs": PICTURES.tolist()}
    response = httpx.post(f"http://{doors.http}/v1/models/every:predict", json=body, timeout=WAIT_S)
    told = response.json()["outputs"]
    words = [[base64.b64decode(each["b64"]) for each in row] for row in told["of_string"]]
    assert words == EveryType().infer(PICTURES)["of_string"].tolist()
    assert told["of_bfloat16"] == EveryType().infer(PICTURES)["of_bfloat16"].tolist()


def test_tensors_are_told_as_the_warm_up_found_them(doors: Doors) -> None:
    """No manifest says what a model of raw tensors gives; generic clients build on what they are told."""
    request = metadata.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "every"
    signatures = metadata.SignatureDefMap()
    with grpc.insecure_channel(doors.grpc) as channel:
        assert PredictionStub(channel).GetModelMetadata(request, WAIT_S).metadata["signature_def"].Unpack(signatures)
    outputs = signatures.signature_def["serving_default"].outputs
    told = {name: (info.dtype, [side.size for side in info.tensor_shape.dim]) for name, info in outputs.items()}
    assert told == {f"of_{name}": (tf.dtypes.as_dtype(name).as_datatype_enum, [-1, WIDTH]) for name in TYPES}
    rest = httpx.get(f"http://{doors.http}/v1/models/every/metadata", timeout=WAIT_S).json()
    info = rest["metadata"]["signature_def"]["signature_def"]["image"]["outputs"]["of_bfloat16"]
    assert (info["dtype"], [side["size"] for side in info["tensor_shape"]["dim"]]) == (
        "DT_BFLOAT16",
        ["-1", f"{WIDTH}"],
    )


def test_tensors_that_are_not_known_beforehand_are_told_as_such(doors: Doors) -> None:
    """No type or shape is made up for what only the model's answer tells."""
    told = httpx.get(f"http://{doors.http}/v1/models/several/metadata", timeout=WAIT_S).json()
    outputs = told["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert set(outputs) == set(HEADS)
    assert outputs["means"]["tensor_shape"]["unknown_rank"] is True
