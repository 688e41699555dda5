"""Reproduction of the first system's clients of TensorFlow Serving, which convert arrays to Python lists and back.

They use the public protocols and libraries with Skylane's own endpoints, because the conversion of arrays is measured. The
original took 7 to 9 s per frame over gRPC and 47 to 49 s over REST, with images 3.6 times as large as those of road-small, as
32-bit numbers, and with twenty scores for every pixel of the reply, which the output `scores` reproduces.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import grpc
import numpy as np
import requests

from bench.baselines.mqtt.images import ColourImage, Timer
from ops.processes.child import BenchError
from shared.imaging.mask_codecs import Mask

SCORES = "scores"  # One 32-bit value per pixel and class; the highest wins.
REPLY_TIMEOUT_S = 120.0

_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_OK = 200


@dataclass(frozen=True, slots=True)
class ServingReply:
    """A mask, and the durations that the server reported, in milliseconds by stage."""

    mask: Mask
    served_ms: dict[str, float]


class RestClient:
    """`POST …:predict` in row format, with a new connection per request, as `requests.post` does."""

    def __init__(self, address: str, model: str, output: str) -> None:  # noqa: ARG002  JSON does not name a single output.
        self._url = f"http://{address}/v1/models/{model}:predict"

    def predict(self, image: ColourImage, timer: Timer) -> ServingReply:
        """Returns the mask of an image, H×W×3 uint8.

        Raises:
            BenchError: the endpoint rejected it.
        """
        instances = [image.tolist()]
        timer.stop("to_lists")
        body = json.dumps({"signature_name": "serving_default", "instances": instances})
        timer.stop("to_json")
        response = requests.post(self._url, data=body, timeout=REPLY_TIMEOUT_S)
        timer.stop("away")
        check_status(response)
        reply = response.json()
        timer.stop("from_json")
        mask = np.array(reply["predictions"], np.uint8)[0]
        timer.stop("from_lists")
        return ServingReply(mask, served_ms(response.headers.get("Server-Timing", "")))


class GrpcClient:
    """`PredictionService.Predict` with tensors as lists of numbers in both directions."""

    def __init__(self, address: str, model: str, output: str) -> None:
        """`output`: the output to read, `mask` or `scores`."""
        # Imported late: TensorFlow's many objects would slow down the garbage collector of a REST client. The library
        # module silences its log, and must be imported before the stubs.
        self._tf = import_module("cloud.engines.tensorflow.runtime").tf
        apis = "tensorflow_serving.apis"
        predict = import_module(f"{apis}.predict_pb2")
        service = import_module(f"{apis}.prediction_service_pb2_grpc")
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._predict = service.PredictionServiceStub(self._channel).Predict
        self._request: Callable[[], Any] = predict.PredictRequest
        self._model = model
        self._output = output

    def predict(self, image: ColourImage, timer: Timer) -> ServingReply:
        """Returns the mask of an image, H×W×3 uint8.

        Raises:
            BenchError: the endpoint rejected it.
        """
        numbers = image.reshape(-1).tolist()
        timer.stop("to_lists")
        request = self._request()
        request.model_spec.name = self._model
        request.model_spec.signature_name = "serving_default"
        tensor = request.inputs["input"]
        tensor.dtype = self._tf.uint8.as_datatype_enum
        for side in (1, *image.shape):
            tensor.tensor_shape.dim.add(size=side)
        tensor.int_val.extend(numbers)
        timer.stop("to_message")
        try:
            response, call = self._predict.with_call(request, timeout=REPLY_TIMEOUT_S)
        except grpc.RpcError as error:
            raise BenchError(f"Predict of {self._model} failed: {error}") from error
        timer.stop("away")
        output = response.outputs[self._output]
        values = list(output.float_val if self._output == SCORES else output.int_val)
        timer.stop("from_message")
        shape = [side.size for side in output.tensor_shape.dim]
        found = np.array(values, np.float32 if self._output == SCORES else np.uint8).reshape(shape)[0]
        timer.stop("from_lists")
        mask = found.argmax(axis=-1).astype(np.uint8) if self._output == SCORES else found
        timer.stop("arg_max")
        trailing = {pair[0]: pair[1] for pair in call.trailing_metadata() or ()}
        return ServingReply(mask, served_ms(str(trailing.get("server-timing", ""))))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def check_status(response: requests.Response) -> None:
    """Raises BenchError if an endpoint rejected a request."""
    if response.status_code != _OK:
        raise BenchError(f"{response.url} answered {response.status_code}: {response.text[:200]}")


CLIENTS: dict[str, Callable[[str, str, str], RestClient | GrpcClient]] = {"rest": RestClient, "grpc": GrpcClient}


def served_ms(header: str) -> dict[str, float]:
    """Parses a `Server-Timing` header, `inferred;dur=210.5, …`, to milliseconds by stage; skips stages without a duration."""
    stages: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        duration = next((parameter[4:] for parameter in parameters if parameter.startswith("dur=")), None)
        if duration is not None:
            stages[name] = float(duration)
    return stages


def conversion_ms(durations_ms: dict[str, float]) -> float:
    """The time of the conversions to lists, JSON and messages, and back, in milliseconds."""
    kinds = ("lists", "json", "message")
    return sum(durations_ms.get(f"{direction}_{kind}", 0.0) for kind in kinds for direction in ("to", "from"))
