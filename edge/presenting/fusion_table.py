"""The fusion file: how reliable the results of two models were at each age, measured by `skylane model tune-fusion`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from zipfile import ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from shared.config import Section
from shared.errors import SkylaneError, unwritable_message
from shared.files import new_file, open_file
from shared.messages.model_card import ModelCard
from shared.package_data import shipped
from shared.reuse.tuning import TunedModelSection

FEATURES = 1  # Version of the features that index the tables; a change in fuse.py needs a new version.
RESIDUALS, CERTAINTIES, AGREEMENTS = 5, 4, 4  # Ranges of each feature of a pixel.
SCORES = 10  # Equal ranges of a box's score.

_MAX_BYTES = 64 << 20
_MAX_AGES = 64
_HEADER = "header"
_ARRAYS = {"segmentation": ("classes",), "detection": ("remote", "local")}


class FusionError(SkylaneError):
    """A fusion file does not exist, is invalid, or is for other models."""


class JudgedAge(Section):
    """Accuracy on drives that the table was not made from, 0 to 1, at one age."""

    age_ms: float
    local: float
    hold: float
    warp: float
    fuse: float
    ceiling: float


class FusionHeader(Section):
    """The models of a fusion file, and the drives that it was made from."""

    features: int = FEATURES
    task: Literal["segmentation", "detection"]
    reference: TunedModelSection
    local: TunedModelSection
    labels: int = Field(ge=1, le=254)
    ages_ms: tuple[float, ...] = Field(min_length=1, max_length=_MAX_AGES)
    drives: tuple[str, ...]  # Names of the recordings.
    compared_with: Literal["labels", "results"] = "labels"  # True labels, or the results of the reference model.
    ticks: int = Field(ge=1)  # Number of ticks at each age.
    judged_on: tuple[str, ...] = ()
    judged: tuple[JudgedAge, ...] = ()

    @model_validator(mode="after")
    def _ages_are_in_order(self) -> Self:
        if self.ages_ms[0] <= 0 or any(
            one >= other for one, other in zip(self.ages_ms, self.ages_ms[1:], strict=False)
        ):
            raise ValueError("ages_ms must be above 0 and rise")
        return self


@dataclass(frozen=True, slots=True)
class FusionTable:
    """A fusion file. The arrays depend on the task.

    Segmentation: `classes`, uint8 ages×features, is the class of a pixel; the features are residual, certainty, agreement,
    class of the moved result, class of the local one. Detection: `remote`, float32 ages×labels×scores, and `local`,
    float32 labels×scores, are the share of boxes of a label and range of scores that are right.
    """

    header: FusionHeader
    arrays: Mapping[str, npt.NDArray[Any]]

    def age_index(self, age_ms: float) -> int | None:
        """Returns the index of the nearest measured age, by ratio; None for an age above all of them (too old)."""
        ages = self.header.ages_ms
        if age_ms > ages[-1]:
            return None
        return min(range(len(ages)), key=lambda number: abs(math.log(ages[number] / age_ms)))

    def check(self, reference: ModelCard, local: ModelCard, path: Path) -> None:
        """Checks that the table is for these two models.

        Raises:
            FusionError: the table is for other models; the message names `path`, its file.
        """
        for role, tuned, card in (
            ("reference model", self.header.reference, reference),
            ("local model", self.header.local, local),
        ):
            if (tuned.name, tuned.sha256) != (card.name, card.sha256):
                other = tuned.name if tuned.name != card.name else f"another file of {card.name} ({tuned.sha256[:12]}…)"
                raise FusionError(f"{path} is for the {role} {other}, not for {card.name}: {_remedy(reference, local)}")
        expected = (reference.task, len(reference.labels.names))
        if (self.header.task, self.header.labels) != expected:
            raise FusionError(
                f"{path} is for {self.header.task} with {self.header.labels} labels, and {reference.name} answers "
                f"{expected[0]} with {expected[1]}: {_remedy(reference, local)}"
            )


def shipped_fusion(reference: str, local: str) -> Path | None:
    """Returns the fusion file that ships for two models; None if no file ships for them."""
    path = shipped("configs") / "tuning" / f"{reference}-{local}-fusion.npz"
    return path if path.is_file() else None


def fusion_for(given: Path | None, reference: ModelCard, local: ModelCard) -> FusionTable:
    """Reads the given fusion file, else the one that ships for the models, and checks that it fits them.

    Raises:
        FusionError: the file is missing, invalid or for other models.
    """
    path = given or shipped_fusion(reference.name, local.name)
    if path is None:
        raise FusionError(
            f"no fusion file ships for model {reference.name} and local model {local.name}: {_remedy(reference, local)}"
        )
    table = read_fusion(path)
    table.check(reference, local, path)
    return table


def read_fusion(path: Path) -> FusionTable:
    """Reads a fusion file.

    Raises:
        FusionError: the file is missing, too large or invalid.
    """
    try:
        arrays = _read_arrays(path)
        header = FusionHeader.model_validate_json(arrays.pop(_HEADER).tobytes())
        problem = _problem(header, arrays)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'header'}: {first['msg']}"
    except FusionError:
        raise
    except OSError as error:
        problem = error.strerror or str(error)
    except Exception as error:  # noqa: BLE001  zipfile, zlib and NumPy raise exceptions of any type for invalid bytes.
        problem = str(error) or type(error).__name__
    if problem:
        raise FusionError(f"{path} is no fusion file ({problem}): give one of `skylane model tune-fusion`")
    return FusionTable(header, arrays)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    with open_file(path) as file, ZipFile(file) as archive:
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > _MAX_BYTES:
            raise FusionError(f"{path} holds {size} bytes, the limit is {_MAX_BYTES}: give a file of `tune-fusion`")
        return {entry.filename.removesuffix(".npy"): _read_array(archive, entry) for entry in entries}


def _read_array(archive: ZipFile, entry: ZipInfo) -> npt.NDArray[Any]:
    """Reads an array after checking that its header does not announce more bytes than the file has."""
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} is no array of NumPy's format 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if math.prod(shape) * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} announces more data than it has")
    with archive.open(entry) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def write_fusion(path: Path, table: FusionTable) -> None:
    """Writes a fusion file.

    Raises:
        FusionError: the file cannot be written.
    """
    text = json.dumps(table.header.model_dump(mode="json"))
    arrays = {_HEADER: np.frombuffer(text.encode(), np.uint8), **table.arrays}
    try:
        with new_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise FusionError(unwritable_message(path, error, "--out")) from error


def table_shape(ages: int, labels: int) -> tuple[int, ...]:
    """Returns the shape of a segmentation's table."""
    return ages, RESIDUALS, CERTAINTIES, AGREEMENTS, labels, labels


def _problem(header: FusionHeader, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the problem of a file; empty for a valid file."""
    if header.features != FEATURES:
        return f"its features are version {header.features}, this program needs {FEATURES}: tune it again"
    if tuple(sorted(arrays)) != tuple(sorted(_ARRAYS[header.task])):
        return f"a table of {header.task} has {' and '.join(_ARRAYS[header.task])}, this one {', '.join(arrays) or 'nothing'}"
    ages, labels = len(header.ages_ms), header.labels
    shapes = {
        "classes": (np.uint8, table_shape(ages, labels)),
        "remote": (np.float32, (ages, labels, SCORES)),
        "local": (np.float32, (labels, SCORES)),
    }
    for name, array in arrays.items():
        dtype, shape = shapes[name]
        if array.dtype != dtype or array.shape != shape:
            return f"{name} is {array.dtype} {array.shape} instead of {np.dtype(dtype)} {shape}"
        if not (array.max() < labels if array.dtype == np.uint8 else ((array >= 0) & (array <= 1)).all()):
            return f"{name} has values out of range"
    return ""


def _remedy(reference: ModelCard, local: ModelCard) -> str:
    return (
        f"make one with `skylane model tune-fusion BAG --model {reference.name} --local-model {local.name}` and give it "
        "with --fusion"
    )
