"""A model with several outputs at TensorFlow Serving's doors."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
import pytest

from cloud.engines.engine import Outputs
from cloud.engines.tensorflow_device import tf
from cloud.manifest import InputSection, Manifest, OutputKind, OutputSection
from cloud.model import Model
from shared.model_card import Task
from tests.cloud.channel import CARD, HEIGHT, WIDTH, Engine
from tests.cloud.gateway.rig import Doors, open_doors

predict: Any = import_module("tensorflow_serving.apis.predict_pb2")
PredictionStub: Any = import_module("tensorflow_serving.apis.prediction_service_pb2_grpc").PredictionServiceStub

WAIT_S = 20.0
HEADS = ("means", "counts", "maps")
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


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    manifest = Manifest(
        task=Task.TENSORS,
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        outputs={head: OutputSection(tensor=f"{head}:0", kind=OutputKind.TENSOR) for head in HEADS},
    )
    card = replace(CARD, name="several", task=Task.TENSORS, outputs=HEADS)
    with open_doors(Model(manifest, card, Several())) as doors:
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


def test_every_type_comes_bit_by_bit_over_grpc(doors: Doors) -> None:
    """Small ones in the list of their type, which many a client reads itself."""
    request = predict.PredictRequest()
    request.model_spec.name = "several"
    request.inputs["input"].CopyFrom(tf.make_tensor_proto(PICTURES))
    with grpc.insecure_channel(doors.grpc) as channel:
        answer = PredictionStub(channel).Predict(request, WAIT_S)
    expected = direct()
    assert set(answer.outputs) == set(HEADS)
    for head, values in expected.items():
        read = tf.make_ndarray(answer.outputs[head])
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)
    assert list(answer.outputs["means"].float_val) == expected["means"].ravel().tolist()


def test_tensors_that_are_not_known_beforehand_are_told_as_such(doors: Doors) -> None:
    """No type or shape is made up for what only the model's answer tells."""
    told = httpx.get(f"http://{doors.http}/v1/models/several/metadata", timeout=WAIT_S).json()
    outputs = told["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    assert set(outputs) == set(HEADS)
    assert outputs["means"]["tensor_shape"]["unknown_rank"] is True
