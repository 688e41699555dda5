"""The axes of a study: the settings that can vary, their valid values and their defaults."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from analysis.study.scenarios import SCENARIOS
from edge.presenting.presenter import PRESENTERS
from edge.transports.transport import MQTT, TRANSPORTS
from edge.workers.dispatcher import DISPATCHERS
from shared.config import Section
from shared.imaging.codec import IMAGE_CODECS
from shared.inference.table import ENGINES, formats
from shared.models.manifest import Precision
from shared.network.link_spec import PROFILES, LinkSpec
from shared.registry import names_of
from shared.reuse.gate import METHODS
from shared.reuse.tuning import CascadeThresholds, threshold_problem

T = TypeVar("T")

OWN_FORMAT = "own"  # The model's format, or the engine's first format if the engine cannot read the model's.
PRECISIONS = tuple(each.value for each in Precision)
NODES = ("edge", "cloud")
NONE = "none"  # A cell without a link, gate, local model, cascade or presenter.
TUNED = "tuned"  # A cascade with the thresholds of the tuning file.
NAME = r"^[A-Za-z0-9_-]{1,64}$"
_QUALITY = re.compile(r"jpeg-([1-9][0-9]?|100)")
_DEVICE = re.compile(r"cpu|gpu(:[0-9]{1,3})?")
_RESOLUTION = re.compile(r"([1-9][0-9]{1,3})x([1-9][0-9]{1,3})")
_GATE = re.compile(rf"({'|'.join(METHODS)})(?:-([0-9]+(?:[.][0-9]+)?))?")
_CASCADE = re.compile(r"([01](?:\.[0-9]+)?)-([01](?:\.[0-9]+)?)")
_TIMES = re.compile(r"[0-9]+(?:[.][0-9]+)?(?:/[0-9]+(?:[.][0-9]+)?)*")
_MIN_SIDE_PIXELS = 32
_MAX_INFERENCE_MS = 60_000


class NamedLink(LinkSpec):
    """A link between the vehicles and the broker or worker; its name is used in cell names and tables."""

    name: str = Field(pattern=NAME)

    @property
    def spec(self) -> LinkSpec:
        """The link without its name."""
        return LinkSpec(**self.model_dump(exclude={"name"}))

    @property
    def has_effect(self) -> bool:
        """True if the link delays, limits or loses anything."""
        return self.spec.model_copy(update={"seed": 0}) != LinkSpec()


def must_be_one_of(kind: str, *tables: Collection[str], also: str = "") -> Callable[[str], str]:
    """Returns a validator that rejects names that are in none of the tables; `also` is appended to the error message."""

    def check(name: str) -> str:
        if not any(name in table for table in tables):
            names = tuple(chain.from_iterable(map(names_of, tables)))
            raise ValueError(f"no {kind} {name!r}: there {'is' if len(names) == 1 else 'are'} {', '.join(names)}{also}")
        return name

    return check


def _codec(codec: str) -> str:
    return (
        codec
        if _QUALITY.fullmatch(codec)
        else must_be_one_of("codec", IMAGE_CODECS, also=", and jpeg-1 to jpeg-100")(codec)
    )


def _device(device: str) -> str:
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"no device {device!r}: use cpu, gpu or gpu:N")
    return device


def _resolution(text: str) -> str:
    match = _RESOLUTION.fullmatch(text)
    if match is None or any(int(side) % 2 or int(side) < _MIN_SIDE_PIXELS for side in match.groups()):
        raise ValueError(
            f"{text!r} is not a resolution: write WIDTHxHEIGHT, both even and at least {_MIN_SIDE_PIXELS}, such as 1936x1216"
        )
    return text


def _gate(gate: str) -> str:
    if gate != NONE and not _GATE.fullmatch(gate):
        raise ValueError(
            f"no gate {gate!r}: use {NONE}, {', '.join(METHODS)}, or a method with its threshold, such as mse-30"
        )
    return gate


def _cascade(cascade: str) -> str:
    match = _CASCADE.fullmatch(cascade)
    if cascade not in (NONE, TUNED) and match is None:
        raise ValueError(f"no cascade {cascade!r}: use {NONE}, {TUNED}, or C_LOW-C_HIGH, such as 0.1-0.9")
    if match is not None and (problem := threshold_problem(float(match[1]), float(match[2]))):
        raise ValueError(f"cascade {cascade!r}: {problem}")
    return cascade


def _inference_times(times: Any) -> Any:
    """Converts a number to a text, the form of the times of several workers: 100 becomes "100"."""
    return f"{times:g}" if isinstance(times, (int, float)) and not isinstance(times, bool) else times


def _check_inference_times(times: str) -> str:
    if not _TIMES.fullmatch(times) or any(not 0 < each <= _MAX_INFERENCE_MS for each in _milliseconds(times)):
        raise ValueError(
            f"{times!r} is not a time: give milliseconds above 0 and up to {_MAX_INFERENCE_MS}, or one time for each "
            "worker, such as 100/100/500"
        )
    return times


def _milliseconds(times: str) -> tuple[float, ...]:
    return tuple(map(float, times.split("/")))


def _link(link: Any) -> Any:
    """Replaces the name of a profile by its link; a map is returned as it is and validated by NamedLink."""
    if isinstance(link, str):
        return NamedLink(name=must_be_one_of("link", PROFILES)(link), **PROFILES[link].model_dump())
    return link


def _listed(values: Any) -> Any:
    return values if values is None or isinstance(values, (list, tuple)) else [values]


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a value occurs twice: remove one")
    return values


ModelName = Annotated[str, Field(pattern=NAME)]
EngineName = Annotated[str, AfterValidator(must_be_one_of("engine", ENGINES))]
FormatName = Annotated[str, AfterValidator(must_be_one_of("format", (OWN_FORMAT, *formats())))]
PrecisionName = Annotated[str, AfterValidator(must_be_one_of("precision", PRECISIONS))]
DeviceName = Annotated[str, AfterValidator(_device)]
TransportName = Annotated[str, AfterValidator(must_be_one_of("transport", TRANSPORTS))]
CodecName = Annotated[str, AfterValidator(_codec)]
Resolution = Annotated[str, AfterValidator(_resolution)]
NodeName = Annotated[str, AfterValidator(must_be_one_of("node", NODES))]
BatchSize = Annotated[int, Field(ge=1, le=256)]
ScenarioName = Annotated[str, AfterValidator(must_be_one_of("scenario", SCENARIOS))]
VehicleCount = Annotated[int, Field(ge=1, le=256)]
WorkerCount = Annotated[int, Field(ge=1, le=32)]
FrameCount = Annotated[int, Field(ge=1, le=10_000_000)]
GateName = Annotated[str, AfterValidator(_gate)]
LocalModelName = Annotated[str, Field(pattern=NAME)]
CascadeName = Annotated[str, AfterValidator(_cascade)]
InferenceTimes = Annotated[str, BeforeValidator(_inference_times), AfterValidator(_check_inference_times)]
PresentName = Annotated[str, AfterValidator(must_be_one_of("presenter", (NONE,), PRESENTERS))]
DispatchName = Annotated[str, AfterValidator(must_be_one_of("dispatch", DISPATCHERS))]
LinkValue = Annotated[NamedLink, BeforeValidator(_link)]
OneOrMore = Annotated[tuple[T, ...], BeforeValidator(_listed), AfterValidator(_distinct), Field(min_length=1)]


class Axes(Section):
    """The values of each axis, given as one value or a list; the cells are all combinations."""

    model: OneOrMore[ModelName] = ("road-small",)
    engine: OneOrMore[EngineName | None] = (None,)  # None: that of the model, or the first that reads its format.
    format: OneOrMore[FormatName] = (OWN_FORMAT,)
    precision: OneOrMore[PrecisionName | None] = (None,)  # None: that of the model.
    device: OneOrMore[DeviceName] = ("cpu",)
    transport: OneOrMore[TransportName] = (MQTT,)
    codec: OneOrMore[CodecName] = ("jpeg",)
    resolution: OneOrMore[Resolution] = ("1936x1216",)
    resize_at: OneOrMore[NodeName | None] = (None,)  # None: edge, except in the scenario mixed_sizes.
    batch: OneOrMore[BatchSize] = (1,)
    scenario: OneOrMore[ScenarioName] = ("single_stream",)
    vehicles: OneOrMore[VehicleCount] = (1,)
    workers: OneOrMore[WorkerCount] = (1,)
    frames: OneOrMore[FrameCount | None] = (None,)  # None: the number set by the study or the scenario.
    link: OneOrMore[LinkValue] = (NamedLink(name=NONE),)
    gate: OneOrMore[GateName] = (NONE,)
    local_model: OneOrMore[LocalModelName] = (NONE,)
    cascade: OneOrMore[CascadeName] = (NONE,)
    tuning: OneOrMore[str | None] = (None,)  # None: the file that ships for the model.
    fixed_inference_ms: OneOrMore[InferenceTimes | None] = (None,)  # None: as long as the engine takes.
    dispatch: OneOrMore[DispatchName | None] = (None,)  # None: the vehicle's default.
    present: OneOrMore[PresentName] = (NONE,)


class Combination(Axes):
    """Values of some axes, which `exclude` removes and `include` adds; the other axes are not part of it."""

    def given(self) -> dict[str, tuple[Any, ...]]:
        """Returns the given axes with their values."""
        return {axis: getattr(self, axis) for axis in AXES if axis in self.model_fields_set}

    @model_serializer(mode="wrap")
    def _only_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {axis: values for axis, values in serialize(self).items() if axis in self.model_fields_set}


AXES = tuple(Axes.model_fields)


def known_values(models: Iterable[str]) -> Mapping[str, str]:
    """Describes the valid values of each axis, for `skylane study list`."""
    return {
        "model": ", ".join(models),
        "engine": f"{', '.join(names_of(ENGINES))}; default: the model's",
        "format": ", ".join((OWN_FORMAT, *formats())),
        "precision": f"{', '.join(PRECISIONS)}; default: the model's",
        "device": "cpu, gpu, gpu:N",
        "transport": ", ".join(names_of(TRANSPORTS)),
        "codec": f"{', '.join(names_of(IMAGE_CODECS))}, or jpeg-N with a quality of 1 to 100 (jpeg is jpeg-85)",
        "resolution": "WIDTHxHEIGHT of the camera, both even, from 32 to 9998",
        "resize_at": ", ".join(NODES),
        "batch": "1 to 256: maximum number of frames per batch",
        "scenario": ", ".join(SCENARIOS),
        "vehicles": "1 to 256",
        "workers": "1 to 32",
        "frames": "measured frames of each vehicle in a run, if different from the study's",
        "gate": f"{NONE}, {', '.join(METHODS)} (the tuned threshold), or with a threshold: mse-30",
        "local_model": f"{NONE}, or a model of the repository that a vehicle can run",
        "cascade": f"{NONE}, {TUNED}, or its thresholds as C_LOW-C_HIGH, such as 0.1-0.9",
        "tuning": "a file of 'skylane model tune-gate', if different from the one that ships for the model",
        "fixed_inference_ms": "time of each inference, with the model's answers computed before the study; of unequal workers: 100/100/500",
        "dispatch": f"{', '.join(DISPATCHERS)}: how a vehicle chooses a worker, with transport {MQTT}",
        "present": f"{NONE}, {', '.join(names_of(PRESENTERS))}: what a vehicle makes of its results at every tick",
        "link": f"{', '.join(PROFILES)}, or a map of name, delay_ms, jitter_ms, bandwidth_mbps, loss_percent …",
    }


def codec_and_quality(codec: str) -> tuple[str, int | None]:
    """Splits a codec such as `jpeg-85` into its name and its quality (None if not given)."""
    match = _QUALITY.fullmatch(codec)
    return ("jpeg", int(match[1])) if match else (codec, None)


def gate_and_threshold(gate: str) -> tuple[str, str] | None:
    """Splits a gate such as `mse-30` into its method and its threshold (`auto` if not given); None without a gate."""
    match = _GATE.fullmatch(gate)
    return (match[1], match[2] or "auto") if match else None


def cascade_thresholds(cascade: str) -> CascadeThresholds | None:
    """Returns the thresholds of a cascade such as `0.1-0.9`; None if it has tuned ones, or if there is no cascade."""
    match = _CASCADE.fullmatch(cascade)
    return CascadeThresholds(float(match[1]), float(match[2])) if match else None


def inference_times_ms(times: str, workers: int) -> tuple[float, ...]:
    """Returns the inference time of each worker; a single time is that of all of them.

    Raises:
        ValueError: There are several times, but not one for each worker.
    """
    values = _milliseconds(times)
    if len(values) == 1:
        return values * workers
    if len(values) != workers:
        raise ValueError(
            f"fixed_inference_ms {times} has {len(values)} times for {workers} worker{'s'[: workers != 1]}: give one time, "
            "or one for each worker"
        )
    return values


def width_and_height(resolution: str) -> tuple[int, int]:
    """Returns width and height in pixels."""
    width, height = resolution.split("x")
    return int(width), int(height)
