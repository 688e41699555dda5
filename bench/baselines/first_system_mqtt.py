"""Reproduction of the first system over MQTT: images with QoS 0 on two topics, coloured masks as JPEG images back.

Child process, in one of several roles. The cloud node does all work in paho's callback: an image is decoded, cropped to the
model's input, inferred with `Session.run`, coloured with a palette, encoded and published before the network thread reads
its socket again. The vehicle has one frame in flight and takes the next image as the reply, as a reply does not contain its
frame. Both use paho, and Mosquitto, with default settings.

A third role reproduces how the system measured "post-processing takes 90 %". It took the time of the prediction when
TensorFlow's call returned. On a GPU, the call returns as soon as the work is queued: the prediction seems to take almost no
time, and the post-processing, which first reads the values, waits for it. On a CPU the call is synchronous by default, and
the times are right. With asynchronous execution, TensorFlow queues the operations of a CPU as well, which shows the same
effect without a GPU.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from bench.baselines.images import Timer, encode_mask, fit, palette_of, to_colour_image
from bench.harness import BenchRun
from bench.tensorflow_variants import VARIANTS, open_variant
from ops.broker.broker import Broker
from ops.processes.child import BenchError, Child, serve
from ops.processes.playback import PlaybackSettings, first_frames
from shared.imaging.frames import Layout
from shared.imaging.opencv import cv2
from shared.inference.model import warmup_images
from shared.models.repository import Repository
from shared.network.endpoint import free_port

FRAMES = "/vehicle_camera"
MASKS = "/segmented_images"

_SUBSCRIBE_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 120.0
_WARM_UP = 3  # Inferences.
_STOPWATCH_IMAGES = 5


class MqttBaseline:
    """The broker, the cloud node and the vehicle of the first system."""

    def __init__(self, run: BenchRun, settings: PlaybackSettings) -> None:
        """Starts all processes, which end with `run`."""
        port = free_port()
        run.enter_context(Broker.start(config=write_broker_config(run.folder, port)))
        node = _child("cloud_node", port=port, models=settings.models, model=settings.model)
        self._cloud = run.enter_context(node)
        self._vehicle = run.enter_context(_child("vehicle", port=port, bag=settings.bag, count=settings.frames))
        for child in (self._cloud, self._vehicle):
            child.wait()

    def send(self, frame: int, keep: Path | None = None) -> Mapping[str, float]:
        """Sends a frame by its number; returns its durations in milliseconds.

        `keep`: folder for the image sent and the image returned.
        """
        vehicle = self._vehicle.ask({"frame": frame, "keep": None if keep is None else str(keep)})
        cloud = self._cloud.ask(None)  # The cloud node keeps the times of its last frame only, which is this one.
        crossing_ms = vehicle.pop("away") - cloud["in_callback"]
        return {**cloud, **vehicle, "crossing": crossing_ms}


def stopwatch_ms(models: Path, model: str) -> dict[str, dict[str, float]]:
    """Median times of prediction and post-processing as the first system measured them, without and with a queue."""
    found = {}
    with _child("stopwatch", models=models, model=model) as child:
        child.wait()
        for name, is_queued in (("as on a CPU", False), ("queued, as on a GPU", True)):
            times = [child.ask({"queued": is_queued}) for _ in range(_STOPWATCH_IMAGES)]
            found[name] = {part: median(each[part] for each in times) for part in times[0]}
    return found


def write_broker_config(folder: Path, port: int) -> Path:
    """Writes a Mosquitto configuration with default settings, except for its listener and anonymous access."""
    path = folder / "plain.conf"
    path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n", encoding="ascii")
    return path


def connect(port: int, topic: str, on_image: Callable[[paho.Client, bytes], None]) -> paho.Client:
    """Returns a subscribed client with the library's defaults; its network thread calls `on_image`.

    Nagle's algorithm is on, and the protocol is 3.1.1.

    Raises:
        BenchError: the broker did not acknowledge the subscription.
    """
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, _, message: on_image(client, bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe(topic)
    client.loop_start()
    if not subscribed.wait(_SUBSCRIBE_TIMEOUT_S):  # Messages published before the subscription would be lost.
        raise BenchError(
            f"the broker on port {port} did not acknowledge the subscription within {_SUBSCRIBE_TIMEOUT_S:g} s"
        )
    return client


class CallbackNode:
    """The cloud node: replies to an image with an image, in the callback."""

    def __init__(self, port: int, models: str, model: str) -> None:
        self._card = Repository(Path(models)).find(model).card()
        self._run = open_variant(VARIANTS["Session.run"], Path(models), model)
        self._palette = palette_of(self._card.labels)
        self._times_ms: dict[str, float] = {}
        for _ in range(_WARM_UP):
            self._run(np.zeros((1, self._card.height, self._card.width, 3), np.uint8))
        self.client = connect(port, FRAMES, self._on_image)

    def last_times(self, _request: Any) -> Mapping[str, float]:
        """Returns the times of the last frame in milliseconds."""
        return self._times_ms

    def _on_image(self, client: paho.Client, data: bytes) -> None:
        """Handles an image; blocks the network thread."""
        timer = Timer()
        colour = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        timer.stop("decoded")
        cropped = fit(np.asarray(colour, np.uint8), self._card.height, self._card.width)
        timer.stop("resized")
        mask = self._run(cropped[None])[0]
        timer.stop("inferred")
        reply = encode_mask(mask.astype(np.uint8, copy=False), self._palette)
        timer.stop("painted")
        self._times_ms = {**timer.durations_ms, "in_callback": timer.total_ms}
        client.publish(MASKS, reply)


class Publisher:
    """The vehicle: sends one frame per request, and takes the next image as the reply."""

    def __init__(self, port: int, bag: str, count: int, *, reply_timeout_s: float = _REPLY_TIMEOUT_S) -> None:
        self._reply_timeout_s = reply_timeout_s
        self._frames = list(first_frames(Path(bag), count))
        self._replies: queue.SimpleQueue[tuple[bytes, float]] = queue.SimpleQueue()
        self.client = connect(port, MASKS, self._on_image)

    def send(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Sends frame `frame` and waits for the reply; returns durations in milliseconds and sizes in bytes.

        `keep`: folder that receives both images as `sent-N.jpg` and `returned-N.jpg`, or None.

        Raises:
            BenchError: no image arrived in time.
        """
        number = int(request["frame"])
        timer = Timer()
        colour = to_colour_image(self._frames[number % len(self._frames)], Layout.BGR8)
        timer.stop("demosaiced")
        image = cv2.imencode(".jpg", colour)[1].tobytes()
        timer.stop("encoded")
        self.client.publish(FRAMES, image)
        try:
            reply, decoded_ms = self._replies.get(timeout=self._reply_timeout_s)
        except queue.Empty:  # QoS 0 does not retransmit.
            raise BenchError(
                f"no image was returned for frame {number} within {self._reply_timeout_s:g} s: run it again"
            ) from None
        timer.stop("away")
        timer.durations_ms["away"] -= decoded_ms
        timer.durations_ms["mask_decoded"] = decoded_ms
        if request.get("keep"):
            folder = Path(request["keep"])
            (folder / f"sent-{number}.jpg").write_bytes(image)
            (folder / f"returned-{number}.jpg").write_bytes(reply)
        sizes = {"bytes_up": len(image), "bytes_down": len(reply)}
        return {**timer.durations_ms, "total": timer.total_ms, **sizes}

    def _on_image(self, _: paho.Client, reply: bytes) -> None:
        """Handles a reply; decodes it on the network thread, as the original did."""
        returned_ns = perf_counter_ns()
        cv2.imdecode(np.frombuffer(reply, np.uint8), cv2.IMREAD_COLOR)
        self._replies.put((reply, (perf_counter_ns() - returned_ns) / 1e6))


class Stopwatch:
    """Measures prediction and post-processing as the original did: by the time at which calls return."""

    def __init__(self, models: str, model: str) -> None:
        # Imported late: a vehicle needs no TensorFlow.
        self._tf = tf = import_module("cloud.engines.tensorflow.runtime").tf
        stored = Repository(Path(models)).find(model)
        card = stored.card()
        (head,) = stored.manifest.heads.values()
        graph = import_module("cloud.engines.tensorflow.graphdef").read_graph(stored.file())
        wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
        self._predict = wrapped.prune(stored.manifest.input.tensor, head.tensor)
        self._palette = palette_of(card.labels)
        self._image = tf.constant(warmup_images(card.height, card.width, 1))
        for _ in range(_WARM_UP):
            self.time({"queued": False})

    def time(self, request: Mapping[str, Any]) -> Mapping[str, float]:
        """Infers one image; `queued`: whether TensorFlow executes asynchronously, as on a GPU."""
        execution = self._tf.config.experimental
        execution.set_synchronous_execution(not request["queued"])
        begin_ns = perf_counter_ns()
        result = self._predict(self._image)
        predicted_ns = perf_counter_ns()
        mask = np.asarray(result)  # Waits until the values are computed.
        encode_mask(mask[0].astype(np.uint8, copy=False), self._palette)
        end_ns = perf_counter_ns()
        execution.set_synchronous_execution(True)
        return {"prediction": (predicted_ns - begin_ns) / 1e6, "postprocessing": (end_ns - predicted_ns) / 1e6}


def _child(role: str, **settings: object) -> Child:
    return Child(__name__, {"role": role, **settings}, title=f"the first system's {role}")


_ROLES: Mapping[str, Callable[..., Callable[[Any], Mapping[str, float]]]] = {
    "cloud_node": lambda **settings: CallbackNode(**settings).last_times,
    "vehicle": lambda **settings: Publisher(**settings).send,
    "stopwatch": lambda **settings: Stopwatch(**settings).time,
}


if __name__ == "__main__":
    serve(lambda role, **settings: _ROLES[role](**settings))
