"""The axes of a study: what can be varied, the values that exist, and what each is by default."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from bench.link.link import PROFILES, LinkSpec
from bench.load.gateway_deployment import ALL_TRANSPORTS, MQTT
from bench.study.plan.scenarios import SCENARIOS
from cloud.engines.engine import ENGINES, FORMATS, Precision
from shared.config import Section

T = TypeVar("T")

CODECS = ("raw", "jpeg", "png", "lz4", "zstd")
OWN = "own"  # Of a model's formats: the one that it has, or where the engine does not read that, the engine's own.
PRECISIONS = tuple(each.value for each in Precision)
NAME = r"^[A-Za-z0-9_-]{1,64}$"
_QUALITY = re.compile(r"jpeg-([1-9][0-9]?|100)")
_DEVICE = re.compile(r"cpu|gpu(:[0-9]{1,3})?")
_RESOLUTION = re.compile(r"([1-9][0-9]{1,3})x([1-9][0-9]{1,3})")
_SMALLEST = 32  # Pixels of a side; smaller pictures show no street.


class NamedLink(LinkSpec):
    """A link between the vehicles and the broker or worker, and what it is called in names and tables."""

    name: str = Field(pattern=NAME)

    @property
    def spec(self) -> LinkSpec:
        """The link without its name."""
        return LinkSpec(**self.model_dump(exclude={"name"}))

    @property
    def is_felt(self) -> bool:
        """Whether it does anything to what passes."""
        return self.spec.model_copy(update={"seed": 0}) != LinkSpec()


def one_of(kind: str, known: Iterable[str], also: str = "") -> Callable[[str], str]:
    """A validator that refuses a name which `known` does not hold, and says what there is; `also`: beside it."""
    names = tuple(known)

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"no {kind} {name!r} yet: there {'is' if len(names) == 1 else 'are'} {told(names)}{also}")
        return name

    return check


def told(names: Iterable[str]) -> str:
    """Names in a row."""
    return ", ".join(names)


def _codec(codec: str) -> str:
    return codec if _QUALITY.fullmatch(codec) else one_of("codec", CODECS, ", and jpeg-1 to jpeg-100")(codec)


def _device(device: str) -> str:
    if not _DEVICE.fullmatch(device):
        raise ValueError(f"no device {device!r}: use cpu, gpu or gpu:N")
    return device


def _resolution(text: str) -> str:
    match = _RESOLUTION.fullmatch(text)
    if match is None or any(int(side) % 2 or int(side) < _SMALLEST for side in match.groups()):
        raise ValueError(f"{text!r} is no resolution: write width, x, height, both even, as 1936x1216")
    return text


def _link(link: Any) -> Any:
    """A profile by its name; a map stays one, to be checked by NamedLink."""
    if isinstance(link, str):
        return NamedLink(name=one_of("link", PROFILES)(link), **PROFILES[link].model_dump())
    return link


def _listed(values: Any) -> Any:
    return values if values is None or isinstance(values, (list, tuple)) else [values]


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a value is there twice: remove one")
    return values


Model = Annotated[str, Field(pattern=NAME)]
Engine = Annotated[str, AfterValidator(one_of("engine", ENGINES))]
Format = Annotated[str, AfterValidator(one_of("format", (OWN, *FORMATS)))]
PrecisionName = Annotated[str, AfterValidator(one_of("precision", PRECISIONS))]
Device = Annotated[str, AfterValidator(_device)]
Transport = Annotated[str, AfterValidator(one_of("transport", ALL_TRANSPORTS))]
Codec = Annotated[str, AfterValidator(_codec)]
Resolution = Annotated[str, AfterValidator(_resolution)]
Batch = Annotated[int, Field(ge=1, le=256)]
ScenarioName = Annotated[str, AfterValidator(one_of("scenario", SCENARIOS))]
Vehicles = Annotated[int, Field(ge=1, le=256)]
Workers = Annotated[int, Field(ge=1, le=32)]
Frames = Annotated[int, Field(ge=1, le=10_000_000)]
Link = Annotated[NamedLink, BeforeValidator(_link)]
Values = Annotated[tuple[T, ...], BeforeValidator(_listed), AfterValidator(_distinct), Field(min_length=1)]
Chosen = Annotated[Annotated[tuple[T, ...], Field(min_length=1)] | None, BeforeValidator(_listed)]


class Axes(Section):
    """What is varied: every axis takes a value or a list of them; the cells are all combinations."""

    model: Values[Model] = ("road-small",)
    engine: Values[Engine] = ("tensorflow",)
    format: Values[Format] = (OWN,)
    precision: Values[PrecisionName] = (Precision.FP32.value,)
    device: Values[Device] = ("cpu",)
    transport: Values[Transport] = (MQTT,)
    codec: Values[Codec] = ("jpeg",)
    resolution: Values[Resolution] = ("1936x1216",)
    batch: Values[Batch] = (1,)
    scenario: Values[ScenarioName] = ("single_stream",)
    vehicles: Values[Vehicles] = (1,)
    workers: Values[Workers] = (1,)
    frames: Values[Frames | None] = (None,)  # None: as the study or the scenario says.
    link: Values[Link] = (NamedLink(name="none"),)


class Combination(Section):
    """Some axes with a value or a list of them: what `exclude` takes away and `include` adds."""

    model: Chosen[Model] = None
    engine: Chosen[Engine] = None
    format: Chosen[Format] = None
    precision: Chosen[PrecisionName] = None
    device: Chosen[Device] = None
    transport: Chosen[Transport] = None
    codec: Chosen[Codec] = None
    resolution: Chosen[Resolution] = None
    batch: Chosen[Batch] = None
    scenario: Chosen[ScenarioName] = None
    vehicles: Chosen[Vehicles] = None
    workers: Chosen[Workers] = None
    frames: Chosen[Frames] = None
    link: Chosen[Link] = None

    def given(self) -> dict[str, tuple[Any, ...]]:
        """The axes that it names, with their values."""
        return {axis: values for axis in AXES if (values := getattr(self, axis)) is not None}


AXES = tuple(Axes.model_fields)

_KNOWN = {  # What `skylane study list` says of each axis; the first words are the values that exist.
    "device": "cpu, gpu, gpu:N",
    "codec": f"{told(CODECS)}, or jpeg-N with a quality of 1 to 100 (jpeg is jpeg-85)",
    "resolution": "of the camera, WIDTHxHEIGHT, both even, from 32 to 9998",
    "batch": "1 to 256: the most frames that go through the model at once",
    "vehicles": "1 to 256",
    "workers": "1 to 32, behind one shared subscription",
    "frames": "of each vehicle in a run, measured, where it is not as the study says",
    "link": f"{told(PROFILES)}, or a map of name, delay_ms, jitter_ms, bandwidth_mbps, loss_percent …",
}


def known_values(models: Iterable[str]) -> Mapping[str, str]:
    """The values that exist of each axis, in words; `models` are those that can be had."""
    return {
        "model": told(models),
        "engine": told(ENGINES),
        "format": f"{OWN}, {told(FORMATS)}",
        "precision": told(PRECISIONS),
        "transport": told(ALL_TRANSPORTS),
        "scenario": told(SCENARIOS),
    } | _KNOWN


def quality(codec: str) -> tuple[str, int | None]:
    """A codec's name and, where one is given, the quality of its pictures."""
    match = _QUALITY.fullmatch(codec)
    return ("jpeg", int(match[1])) if match else (codec, None)


def sides(resolution: str) -> tuple[int, int]:
    """Width and height in pixels."""
    width, height = resolution.split("x")
    return int(width), int(height)
