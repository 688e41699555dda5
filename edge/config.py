"""The configuration of `skylane edge play`: a YAML file whose values flags override."""

import secrets
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, DirectoryPath, FilePath, model_validator

from edge.presenting.presenter import PRESENTERS
from edge.sinks.sink import SINKS, VideoCodec
from edge.transports.transport import TRANSPORTS
from edge.view.viewer import LOOPBACK, VIEWERS, bytes_per_s
from edge.workers.dispatcher import DISPATCHERS
from shared.config import OneOf, parsed_by, setting
from shared.imaging.bit_depth import Bits
from shared.imaging.codec import MASK_CODECS
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.messages.frame import RequestOptions
from shared.messages.msgpack_reader import VERSION_NAME
from shared.messages.topics import validate_name
from shared.mqtt.broker_options import DAY_S, NodeSection
from shared.network.endpoint import WORKER, Endpoint, is_loopback
from shared.reuse.gate import METHODS
from shared.reuse.tuning import threshold_problem


class Arrivals(StrEnum):
    """The schedule of an open loop."""

    SOURCE = "source"  # The times at which the source recorded the frames.
    UNIFORM = "uniform"  # A constant rate, as from one camera.
    POISSON = "poisson"  # A Poisson process, as from many independent vehicles.


_TUNNEL = "keep it on 127.0.0.1, and forward its ports with ssh -L (see the guide 'Watch a run')"

Demosaic = Literal["auto", "bilinear", "edge-aware", "vng", "binning"]

BITS = setting("auto", "Bits of the values in 16-bit images; auto: measured in the first frames of each camera.")
ENCODINGS = setting(
    (),
    "Encoding of raw images, of all topics or of one, instead of the recorded one (repeatable).",
    "--encoding",
    metavar="[TOPIC=]ENCODING",
    shown="as recorded",
)

_LARGEST_DISTANCES = {"mse": 255**2, "pixels": 100}  # Largest possible distance by gate method.


def _worker_address(text: str) -> str:
    return str(Endpoint.parse(text))


def _bind_address(text: str) -> str:
    Endpoint.parse(text, listens=True)
    return text


def _rate(text: str) -> str:
    bytes_per_s(text)
    return text


class EdgeConfig(NodeSection):
    """The vehicle node's configuration, as in `configs/edge.yaml`."""

    topics: tuple[str, ...] = setting((), "Image topic of the bag to play (repeatable).", "-t", "--topic", shown="all")
    frames: int | None = setting(None, "Number of frames to play.", shown="all", ge=1)
    loop: bool = setting(False, "Repeat the source until Ctrl-C.", "-l", "--loop")
    start_offset_s: float = setting(0.0, "Seconds of the source to skip at its start.", "--start-offset", ge=0)
    playback_duration_s: float | None = setting(
        None, "Seconds of the source to play.", "--playback-duration", shown="all", gt=0
    )
    bits: Annotated[Bits, BeforeValidator(str)] = BITS  # YAML gives a number.
    encodings: tuple[str, ...] = ENCODINGS
    read_ahead_queue_size: int = setting(16, "Number of frames read in advance.", ge=1, le=1000)

    model: Annotated[str, parsed_by(partial(validate_name, "model"))] = setting(
        "road-small", "Model that answers the frames.", metavar="NAME"
    )
    model_version: str | None = setting(
        None, "Version of the model, for the whole run.", shown="the worker's current one", pattern=VERSION_NAME
    )
    vehicle: Annotated[str, parsed_by(partial(validate_name, "vehicle"))] = setting(
        "vehicle", "Name of this vehicle.", metavar="NAME"
    )
    transport: Annotated[str, OneOf("transport", TRANSPORTS)] = setting("mqtt", "Protocol between vehicle and worker.")
    dispatch: Annotated[str, OneOf("dispatcher", DISPATCHERS)] = setting(
        "load",
        "How a frame gets its worker with a broker: load (the one with the shortest expected answer) or group (in turn).",
    )
    worker_addresses: tuple[Annotated[str, parsed_by(_worker_address)], ...] = setting(
        (),
        "Address of a worker's gRPC or HTTP endpoint (repeatable), for every transport except mqtt. Each frame goes to the "
        "worker with the fewest frames in flight.",
        "--worker-address",
        metavar="HOST:PORT",
    )
    worker_tls_ca: FilePath | None = setting(
        None,
        f"Certificate authority (PEM) of the workers; turns TLS on. The token is read from {WORKER}.",
    )
    min_bandwidth_mbps: float | None = setting(
        None,
        "Slowest link to expect, in Mbit/s; frames that would occupy it for too long are dropped.",
        "--min-bandwidth",
        shown="none",
        gt=0,
        le=1e6,
    )

    rate: float = setting(1.0, "Playback speed, relative to the source.", "-r", "--rate", ge=1e-3, le=1e6)
    deadline_ms: float | None = setting(
        None, "Deadline of an answer, in ms after the frame was due.", shown="none", gt=0, le=DAY_S * 1e3
    )
    window: int = setting(4, "Maximum number of unanswered frames.", ge=1, le=1024)
    queue: int = setting(
        1, "Number of due frames per camera that may wait; if more are due, the oldest is dropped.", ge=1, le=1 << 16
    )
    closed_loop: bool = setting(False, "Send every frame, the next one when an answer arrives.")
    burst: int = setting(
        1, "Closed loop: number of frames that are due together; the next ones when all have ended.", ge=1
    )
    arrivals: Arrivals = setting(
        Arrivals.SOURCE, "When frames are due in an open loop: at the source's times, or at --arrival-rate."
    )
    arrival_rate_hz: float | None = setting(
        None,
        "Frames per second of uniform or Poisson arrivals, of all cameras together.",
        "--arrival-rate",
        shown="none",
        ge=1e-3,
        le=1e6,
    )
    seed: int | None = setting(
        None,
        "Seed of Poisson arrivals; the same seed gives the same schedule.",
        shown="random, in the manifest",
        ge=0,
        lt=1 << 63,
    )
    delay_s: float = setting(0.0, "Seconds to wait before the first frame.", "-d", "--delay", ge=0, le=DAY_S)
    answer_timeout_s: float = setting(
        30.0, "Seconds after which a frame without an answer is lost.", "--answer-timeout", gt=0, le=DAY_S
    )
    retry: bool = setting(True, "Send a frame a second time if it gets no answer.", "--retry/--no-retry")
    retry_after_ms: float | None = setting(
        None,
        "Time without an answer after which it is sent again.",
        shown="from recent answer times",
        ge=1,
        le=DAY_S * 1e3,
    )

    gate: Annotated[str, OneOf("gate", METHODS)] | None = setting(
        None,
        "Reuse the result of an earlier frame that looks nearly the same; compared by the mean squared difference of grey "
        "levels, or by the percentage of pixels that changed.",
        shown="off",
    )
    gate_threshold: float | Literal["auto"] = setting(
        "auto", "Largest distance of two frames with the same result; auto: from the tuning file.", metavar="X|auto"
    )
    reuse_frames: int | None = setting(
        None, "Longest reuse of a result, in frames of its camera.", shown="as tuned, else 100", ge=1
    )
    reuse_ms: float | None = setting(
        None, "Longest reuse of a result, in ms.", shown="as tuned, else 10000", gt=0, le=DAY_S * 1e3
    )
    local_model: Annotated[str, parsed_by(partial(validate_name, "model"))] | None = setting(
        None,
        "Model that runs on the vehicle (ONNX or TensorFlow Lite). It answers frames that would be dropped because no worker "
        "is alive or too many frames are unanswered.",
        metavar="NAME",
        shown="none",
    )
    models: DirectoryPath | None = setting(
        None, "Model repository of the local model.", shown="SKYLANE_MODELS, or the user's"
    )
    cascade: bool = setting(False, "Ask the local model first, and send only the frames that it is not sure of.")
    c_low: float | None = setting(
        None, "The local model is sure of a score up to this.", "--c-low", shown="as tuned", ge=0, le=1
    )
    c_high: float | None = setting(
        None, "The local model is sure of a score from this on.", "--c-high", shown="as tuned", ge=0, le=1
    )
    local_timeout_ms: float = setting(
        1000.0, "Time limit of the local model, in ms; it is paused when it exceeds it.", gt=0, le=DAY_S * 1e3
    )
    local_threads: int = setting(1, "Threads of the local model's engine.", ge=1, le=256)
    tuning: FilePath | None = setting(
        None, "Tuned thresholds, a file of `skylane model tune-gate`.", shown="the one shipped for the model"
    )

    present: Annotated[str, OneOf("presenter", PRESENTERS)] | None = setting(
        None,
        "Present an output for every frame when it is due: hold (the newest result), warp (moved to now by optical flow), "
        "warp-fine (moved more exactly, in four times the time) or fuse (combined with the local model's result).",
        shown="off",
    )
    present_max_age_ms: float = setting(
        2000.0, "Oldest result that is presented, in ms after its frame was due.", gt=0, le=DAY_S * 1e3
    )
    fusion: FilePath | None = setting(
        None,
        "Measured reliability of both models, a file of `skylane model tune-fusion`.",
        shown="the one shipped for the two models",
    )

    codec: Annotated[str, OneOf("image codec", IMAGE_CODECS)] = setting("jpeg", "Encoding of frames.")
    quality: int = setting(85, "JPEG quality.", ge=1, le=100)
    resize: Resize | None = setting(
        None, "How frames are resized to the model's input size.", shown="as the model's card says"
    )
    resize_at: Literal["edge", "cloud"] = setting("edge", "Node that resizes frames.")
    demosaic: Demosaic = setting(
        "auto", "Demosaicing of Bayer frames; auto uses binning where half the resolution is enough."
    )
    mask_codec: Annotated[str, OneOf("mask codec", MASK_CODECS)] = setting(
        "zstd", "Encoding of results; all are lossless."
    )
    mask_size: Literal["model", "frame"] = setting("model", "Size of the masks that are returned.")

    out: Path | None = setting(None, "Folder of the run.", shown="runs/<UTC time>-<vehicle>")
    sinks: tuple[Annotated[str, OneOf("sink", SINKS)], ...] | None = setting(
        None, "Format in which results are written (repeatable).", "--sink", shown="by the task"
    )
    video_codec: VideoCodec = setting(VideoCodec.VP9, "Codec of --sink video.")
    top_k: int | None = setting(
        None, "Number of classes that a classification returns.", shown="as the model says", ge=1, le=256
    )
    outputs: tuple[str, ...] = setting(
        (), "Output tensor to return (repeatable), for models of raw tensors.", "--output", shown="all"
    )
    view: Annotated[str, OneOf("viewer", VIEWERS)] | None = setting(
        None, "Show the run while it goes on, in a program or page that connects to the printed address.", shown="off"
    )
    view_limit: Annotated[str, parsed_by(_rate)] | None = setting(
        None,
        "Highest rate of what is sent to a viewer: its pictures become smaller and fewer, and never old.",
        metavar="2Mbit",
        shown="none",
    )
    view_host: str = setting(
        LOOPBACK, "Address that the viewer's server listens on; another one than loopback needs a certificate."
    )
    view_tls_cert: FilePath | None = setting(None, "Certificate (PEM) of the viewer's server; Foxglove only.")
    view_tls_key: FilePath | None = setting(None, "Its private key (PEM).")
    metrics: Annotated[str, parsed_by(_bind_address)] | None = setting(
        None,
        "Address at which Prometheus reads this vehicle's metrics; without a host, from this machine only.",
        metavar="HOST:PORT",
        shown="off",
    )
    sample_containers: tuple[str, ...] = setting(
        (), "Docker container on this machine whose resource use is sampled (repeatable).", "--sample-container"
    )

    @model_validator(mode="after")
    def _transport_has_its_addresses(self) -> Self:
        if TRANSPORTS[self.transport].needs_addresses:
            if not self.worker_addresses:
                raise ValueError(
                    f"`transport`: {self.transport} needs `worker_addresses`, HOST:PORT of one worker or more"
                )
            if "dispatch" in self.model_fields_set:
                raise ValueError(
                    f"`dispatch`: {self.transport} sends each frame to the worker with the fewest frames in flight: leave "
                    "it out, or set `transport` to mqtt"
                )
        elif self.worker_addresses or self.worker_tls_ca:
            raise ValueError(
                f"`worker_addresses`: with {self.transport} the broker finds the workers: leave the addresses out, or set "
                "`transport`"
            )
        return self

    @model_validator(mode="after")
    def _playback_is_consistent(self) -> Self:
        scheduled = self.arrivals is not Arrivals.SOURCE
        if scheduled and self.arrival_rate_hz is None:
            raise ValueError(f"`arrivals`: {self.arrivals} needs `arrival_rate_hz`, the number of frames per second")
        if not scheduled and self.arrival_rate_hz is not None:
            raise ValueError(
                "`arrival_rate_hz`: the times of the source are the schedule: set `arrivals`, or use `rate` instead"
            )
        if scheduled and self.rate != 1.0:
            raise ValueError(
                f"`rate`: {self.arrivals} arrivals follow `arrival_rate_hz`, not the source: leave `rate` out"
            )
        if scheduled and self.closed_loop:
            raise ValueError(
                f"`arrivals`: a closed loop waits for answers, not for {self.arrivals} arrivals: choose one"
            )
        if self.queue > 1 and self.closed_loop:
            raise ValueError("`queue`: a closed loop drops no frame, so none waits: leave `queue` out")
        if self.retry_after_ms is not None and not self.retry:
            raise ValueError("`retry_after_ms`: every frame is sent only once (see `retry`): leave one of the two out")
        if self.burst > 1 and not self.closed_loop:
            raise ValueError("`burst`: only a closed loop sends bursts: add `closed_loop`")
        return self

    @model_validator(mode="after")
    def _gate_is_consistent(self) -> Self:
        if self.gate is None:
            self._refuse_without("gate", "only a gate compares frames", "gate_threshold", "reuse_frames", "reuse_ms")
        elif self.gate_threshold != "auto" and not 0 <= self.gate_threshold <= _LARGEST_DISTANCES[self.gate]:
            raise ValueError(
                f"`gate_threshold`: {self.gate_threshold:g} is no distance by {self.gate}: give 0 to "
                f"{_LARGEST_DISTANCES[self.gate]}, or auto"
            )
        if self.gate is None and self.local_model is None:
            self._refuse_without("gate` or `local_model", "nothing uses it", "tuning")
        return self

    @model_validator(mode="after")
    def _local_model_is_consistent(self) -> Self:
        if self.local_model is None:
            keys = ("cascade", "models", "local_timeout_ms", "local_threads")
            self._refuse_without("local_model", "there is no model on the vehicle", *keys)
        if not self.cascade:
            self._refuse_without("cascade", "only a cascade has thresholds", "c_low", "c_high")
        if self.c_low is not None and self.c_high is not None:
            problem = threshold_problem(self.c_low, self.c_high)
            if problem is not None:
                raise ValueError(f"`c_low`: {problem}")
        return self

    @model_validator(mode="after")
    def _presenting_is_consistent(self) -> Self:
        if self.present is None:
            self._refuse_without("present", "nothing is presented", "present_max_age_ms", "fusion")
            return self
        if self.mask_size == "frame":
            raise ValueError(
                f"`present`: {self.present} presents masks of the model's size: leave `mask_size` out, or set it to model"
            )
        if PRESENTERS[self.present].needs_local:
            if self.local_model is None:
                raise ValueError(f"`present`: {self.present} needs a model on the vehicle: add `local_model`")
        elif self.fusion is not None:
            raise ValueError(
                f"`fusion`: {self.present} combines no results: set `present` to fuse, or leave `fusion` out"
            )
        return self

    @model_validator(mode="after")
    def _view_is_consistent(self) -> Self:
        has_certificate = self.view_tls_cert is not None
        if self.view is None:
            self._refuse_without("view", "nothing is shown", "view_limit", "view_host", "view_tls_cert", "view_tls_key")
        elif has_certificate != (self.view_tls_key is not None):
            raise ValueError("`view_tls_cert`: a certificate needs its key: give `view_tls_key`, too")
        elif has_certificate and not VIEWERS[self.view].has_tls:
            raise ValueError(f"`view_tls_cert`: the server of {self.view} has no TLS: {_TUNNEL}")
        elif not is_loopback(self.view_host) and not has_certificate:
            remedy = "give `view_tls_cert` and `view_tls_key`" if VIEWERS[self.view].has_tls else _TUNNEL
            raise ValueError(f"`view_host`: {self.view_host} would show the camera to the whole network: {remedy}")
        return self

    def _refuse_without(self, missing: str, problem: str, *keys: str) -> None:
        """Raises a ValueError for the first of `keys` that is set, as it has no effect without the key `missing`."""
        for key in keys:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"`{key}`: {problem}: add `{missing}`, or leave it out")

    @property
    def needs_loads(self) -> bool:
        """True if the transport must subscribe to the loads that workers report."""
        return DISPATCHERS[self.dispatch].needs_loads

    @property
    def want(self) -> RequestOptions:
        """The form of the results that the worker returns."""
        return RequestOptions(self.mask_codec, self.mask_size, self.top_k, self.outputs)

    def seeded(self) -> Self:
        """Returns the configuration with a random seed if Poisson arrivals have none."""
        if self.arrivals is not Arrivals.POISSON or self.seed is not None:
            return self
        return self.model_copy(update={"seed": secrets.randbits(32)})
