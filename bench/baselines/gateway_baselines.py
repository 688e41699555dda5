"""Reproductions of the senders that talk to Skylane's own HTTP and gRPC endpoints, in a child process.

The first system's clients of TensorFlow Serving convert arrays to Python lists and back. The original took 7 to 9 s per
frame over gRPC and 47 to 49 s over REST, with images 3.6 times as large as those of road-small, as 32-bit numbers, and with
twenty scores for every pixel of the reply, which the output `scores` reproduces. The fifth system's sender uploads a file to
`/api/detect`, waits for the reply, and continues with the next file.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import grpc
import numpy as np
import requests

from bench.baselines.images import ColourImage, Timer, fit, to_colour_image
from ops.processes.child import BenchError, serve
from ops.processes.playback import first_frames
from shared.imaging.codec import Mask
from shared.imaging.frames import Frame, Layout
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.models.manifest import MANIFEST_NAME, OutputKind, OutputSection
from shared.models.repository import Repository

SCORES = "scores"  # One 32-bit value per pixel and class; the highest wins.

_REPLY_TIMEOUT_S = 120.0
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
_LIST_CONVERSIONS = {f"{way}_{kind}" for kind in ("lists", "json", "message") for way in ("to", "from")}


# A mask, and the durations that the server reported, in milliseconds by stage.
ServingReply = tuple[Mask, dict[str, float]]


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
        response = _post(self._url, data=body)
        timer.stop("away")
        reply = response.json()
        timer.stop("from_json")
        mask = np.array(reply["predictions"], np.uint8)[0]
        timer.stop("from_lists")
        return mask, _served_ms(response)

    def close(self) -> None:
        """Does nothing: each request closes its connection."""


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
            response, call = self._predict.with_call(request, timeout=_REPLY_TIMEOUT_S)
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
        return mask, served_ms(str(trailing.get("server-timing", "")))

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


CLIENTS: dict[str, Callable[[str, str, str], RestClient | GrpcClient]] = {"rest": RestClient, "grpc": GrpcClient}


class ServingVehicle:
    """The first system's vehicle, which crops frames to the model: prepares a frame, sends it and decodes the mask."""

    def __init__(self, client: RestClient | GrpcClient, card: ModelCard, frames: Sequence[Frame]) -> None:
        self._client = client
        self._card = card
        self._frames = frames

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame`; returns durations in milliseconds."""
        timer = Timer()
        colour = to_colour_image(self._frames[int(request["frame"]) % len(self._frames)], self._card.layout)
        timer.stop("demosaiced")
        image = fit(colour, self._card.height, self._card.width)
        timer.stop("preprocessed")
        _, stages_ms = self._client.predict(image, timer)
        total_ms = timer.total_ms
        inferred_ms = stages_ms["inferred"]
        link_ms = timer.durations_ms.pop("away") - inferred_ms  # The link, and the endpoint's own work.
        parts = {**timer.durations_ms, "link_and_door": link_ms, "in_lists": conversion_ms(timer.durations_ms)}
        return {**parts, "inferred": inferred_ms, "total": total_ms}


class DetectionSender:
    """The fifth system's sender: uploads one image per request, each over a new connection.

    Frames are encoded before they are timed, because the original sent a folder of JPEG files.
    """

    def __init__(self, address: str, model: str, frames: Sequence[Frame]) -> None:
        self._url = f"http://{address}/api/detect"
        self._model = model
        self._files = [cv2.imencode(".jpg", to_colour_image(frame, Layout.BGR8))[1].tobytes() for frame in frames]

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Uploads file `frame`; returns the total and the inference time.

        Raises:
            BenchError: the endpoint rejected it.
        """
        file = self._files[int(request["frame"]) % len(self._files)]
        begin_ns = perf_counter_ns()
        response = _post(self._url, params={"model": self._model}, files={"file": ("frame.jpg", file, "image/jpeg")})
        response.json()
        return {"inferred": _served_ms(response)["inferred"], "total": (perf_counter_ns() - begin_ns) / 1e6}


def export_scores_model(models: Path, model: str, folder: Path) -> Path:
    """Writes a repository to `folder` in which the model has the output `scores`, N×H×W×C float32; returns `folder`.

    Skylane converts the scores of a segmentation to class ids next to the model, one byte per pixel. The first system's two
    larger models returned twenty 32-bit scores for every pixel, which its clients converted to Python lists.

    Raises:
        BenchError: the model has no scores.
    """
    stored = Repository(models).find(model)
    manifest = stored.manifest
    if manifest.output is None or manifest.output.kind is not OutputKind.SCORES:
        raise BenchError(f"{model} has no scores of pixels: choose a model that has, such as street-lite")
    served = manifest.model_copy(
        update={
            "task": "tensors",
            "output": None,
            "outputs": {"scores": OutputSection(tensor=manifest.output.tensor, kind=OutputKind.TENSOR)},
        }
    )
    source = stored.file()
    model_folder = folder / model
    model_folder.mkdir(parents=True)
    copy = shutil.copytree if source.is_dir() else shutil.copyfile
    copy(source, model_folder / manifest.file)
    (model_folder / MANIFEST_NAME).write_text(served.to_yaml(), encoding="utf-8")
    return folder


def served_ms(header: str) -> dict[str, float]:
    """Parses a `Server-Timing` header, `inferred;dur=210.5, …`, to milliseconds by stage; skips stages without a duration."""
    stages: dict[str, float] = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        duration = next((parameter[4:] for parameter in parameters if parameter.startswith("dur=")), None)
        if duration is not None:
            stages[name] = float(duration)
    return stages


def conversion_ms(durations_ms: Mapping[str, float]) -> float:
    """The time of the conversions to lists, JSON and messages, and back, in milliseconds."""
    return sum(each_ms for step, each_ms in durations_ms.items() if step in _LIST_CONVERSIONS)


def _post(url: str, **content: Any) -> requests.Response:
    response = requests.post(url, timeout=_REPLY_TIMEOUT_S, **content)
    if not response.ok:
        raise BenchError(f"{response.url} answered {response.status_code}: {response.text[:200]}")
    return response


def _served_ms(response: requests.Response) -> dict[str, float]:
    return served_ms(response.headers.get("Server-Timing", ""))


def _start(
    *, protocol: str, address: str, models: str, model: str, output: str, bag: str, count: int
) -> Callable[[Mapping[str, Any]], Mapping[str, float]]:
    """Returns the function that sends a frame; `protocol`: a key of CLIENTS, or `detect` for the fifth system."""
    frames = list(first_frames(Path(bag), count))
    if protocol == "detect":
        return DetectionSender(address, model, frames).send
    client = CLIENTS[protocol](address, model, output)
    return ServingVehicle(client, Repository(Path(models)).find(model).card(), frames).send


if __name__ == "__main__":
    serve(_start)
