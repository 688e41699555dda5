"""The first system's clients of TensorFlow Serving (a reproduction of the method): arrays become Python lists, and back.

They speak the public protocols with the public libraries, and are pointed at Skylane's own doors, for what they do with
their arrays is what is measured. The original's took 7 to 9 s a frame over gRPC and 47 to 49 s over REST, of pictures
3.6 times as large as road-small's, as 32-bit numbers, and with twenty scores for every pixel of the answer: those come where
the output is `scores`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from time import perf_counter_ns
from typing import Any

import grpc
import numpy as np
import requests

from bench.baselines.mqtt.images import Picture
from bench.load.playback import BenchError
from shared.imaging.mask_codecs import Mask

SCORES = "scores"  # For each pixel and class, 32 bits; the highest wins.

_ANSWER_S = 120.0
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_OK = 200


@dataclass(slots=True)
class LapTimer:
    """What took how long, milliseconds by name, in order."""

    took_ms: dict[str, float] = field(default_factory=dict)
    _last_ns: int = field(default_factory=perf_counter_ns)

    def lap(self, name: str) -> None:
        """What was done since the last lap is called so."""
        now_ns = perf_counter_ns()
        self.took_ms[name] = (now_ns - self._last_ns) / 1e6
        self._last_ns = now_ns


@dataclass(frozen=True, slots=True)
class Answer:
    """A mask, and what the server says that it did for it: milliseconds by stage."""

    mask: Mask
    served_ms: dict[str, float]


class RestClient:
    """`POST …:predict` in row format, a connection a request, as `requests.post` makes them."""

    def __init__(self, address: str, model: str, output: str) -> None:  # noqa: ARG002  Of one output JSON has no name.
        self._url = f"http://{address}/v1/models/{model}:predict"

    def predict(self, picture: Picture, timer: LapTimer) -> Answer:
        """The mask of a picture (H×W×3 uint8).

        Raises:
            BenchError: the door refused it.
        """
        instances = [picture.tolist()]
        timer.lap("to_lists")
        body = json.dumps({"signature_name": "serving_default", "instances": instances})
        timer.lap("to_json")
        response = requests.post(self._url, data=body, timeout=_ANSWER_S)
        timer.lap("away")
        if response.status_code != _OK:
            raise BenchError(f"{self._url} answered {response.status_code}: {response.text[:200]}")
        answer = response.json()
        timer.lap("from_json")
        mask = np.array(answer["predictions"], np.uint8)[0]
        timer.lap("from_lists")
        return Answer(mask, served_ms(response.headers.get("Server-Timing", "")))


class GrpcClient:
    """`PredictionService.Predict` with a tensor of single numbers, each way."""

    def __init__(self, address: str, model: str, output: str) -> None:
        """`output`: what is read of the answer, `mask` or `scores`."""
        # Not above: a REST client has no TensorFlow, whose many objects would make Python's collector slower for it. The
        # stubs load it too, and it must have been loaded quietly before.
        self._tf = import_module("cloud.engines.tensorflow.library").tf
        apis = "tensorflow_serving.apis"
        predict = import_module(f"{apis}.predict_pb2")
        service = import_module(f"{apis}.prediction_service_pb2_grpc")
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._predict = service.PredictionServiceStub(self._channel).Predict
        self._request: Callable[[], Any] = predict.PredictRequest
        self._model = model
        self._output = output

    def predict(self, picture: Picture, timer: LapTimer) -> Answer:
        """The mask of a picture (H×W×3 uint8).

        Raises:
            BenchError: the door refused it.
        """
        numbers = picture.reshape(-1).tolist()
        timer.lap("to_lists")
        request = self._request()
        request.model_spec.name = self._model
        request.model_spec.signature_name = "serving_default"
        tensor = request.inputs["input"]
        tensor.dtype = self._tf.uint8.as_datatype_enum
        for side in (1, *picture.shape):
            tensor.tensor_shape.dim.add(size=side)
        tensor.int_val.extend(numbers)
        timer.lap("to_message")
        try:
            response, call = self._predict.with_call(request, timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise BenchError(f"Predict of {self._model} failed: {error}") from error
        timer.lap("away")
        output = response.outputs[self._output]
        answered = list(output.float_val if self._output == SCORES else output.int_val)
        timer.lap("from_message")
        shape = [side.size for side in output.tensor_shape.dim]
        found = np.array(answered, np.float32 if self._output == SCORES else np.uint8).reshape(shape)[0]
        timer.lap("from_lists")
        mask = found.argmax(axis=-1).astype(np.uint8) if self._output == SCORES else found
        timer.lap("arg_max")
        trailing = {pair[0]: pair[1] for pair in call.trailing_metadata() or ()}
        return Answer(mask, served_ms(str(trailing.get("server-timing", ""))))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


CLIENTS: dict[str, Callable[[str, str, str], RestClient | GrpcClient]] = {"rest": RestClient, "grpc": GrpcClient}


def served_ms(header: str) -> dict[str, float]:
    """The stages in a `Server-Timing`: `inferred;dur=210.5, …` in milliseconds; those without a duration are left out."""
    stages: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        duration = next((parameter[4:] for parameter in parameters if parameter.startswith("dur=")), None)
        if duration is not None:
            stages[name] = float(duration)
    return stages


def in_lists(took_ms: dict[str, float], names: Sequence[str] = ("to_lists", "to_json", "to_message")) -> float:
    """Milliseconds that the conversions into lists and messages, and back, took."""
    back = [name.replace("to_", "from_") for name in names]
    return sum(took_ms.get(name, 0.0) for name in (*names, *back))
