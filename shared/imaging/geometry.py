"""How a picture is cropped, resized and padded to a model's input, and how a mask goes back onto the picture."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE, cv2

_REMEMBERED = 64  # Geometries that came from the wire; a camera has one.
UNSEEN = 255  # The class id of what no model has seen, where a frame was cropped.

_Picture = TypeVar("_Picture", bound=Pixels)
_Length = Annotated[int, Meta(ge=0, le=MAX_SIDE)]


class GeometryError(SkylaneError):
    """A geometry that describes no possible resize, or a picture that does not fit its geometry."""


class Resize(StrEnum):
    """How a picture of one aspect ratio becomes an input of another."""

    CROP = "crop"  # Fit one axis, cut the other around the centre: nothing distorted, the margins unseen.
    LETTERBOX = "letterbox"  # Fit the whole picture and pad with black (0): nothing distorted, nothing unseen.
    STRETCH = "stretch"  # Each axis by its own factor: distorted.


class Geometry(Struct, frozen=True):
    """The resize that was made: the `crop` rectangle of the source became the `paste` rectangle of the target.

    All in pixels. Source means the sensor's picture, even where a halved one (binning) is resized in its place.
    """

    source_height: _Length
    source_width: _Length
    crop_top: _Length
    crop_left: _Length
    crop_height: _Length
    crop_width: _Length
    target_height: _Length
    target_width: _Length
    paste_top: _Length
    paste_left: _Length
    paste_height: _Length
    paste_width: _Length


def plan(resize: Resize, source_height: int, source_width: int, target_height: int, target_width: int) -> Geometry:
    """The geometry that brings a source picture to a target size in the way of `resize`.

    A crop starts at, and takes, an even number of source pixels, so that halving the source first (binning) cuts it
    at the same place.

    Raises:
        GeometryError: a size is not positive or too large.
    """
    crop_height, crop_width, paste_height, paste_width = source_height, source_width, target_height, target_width
    _check_size("source", source_height, source_width)
    _check_size("target", target_height, target_width)
    source_is_wider = source_width * target_height > source_height * target_width
    if resize is Resize.CROP and source_is_wider:
        crop_width = _even(source_height * target_width / target_height, source_width)
    elif resize is Resize.CROP:
        crop_height = _even(source_width * target_height / target_width, source_height)
    elif resize is Resize.LETTERBOX and source_is_wider:
        paste_height = min(target_height, max(1, round(source_height * target_width / source_width)))
    elif resize is Resize.LETTERBOX:
        paste_width = min(target_width, max(1, round(source_width * target_height / source_height)))
    return Geometry(
        source_height=source_height,
        source_width=source_width,
        crop_top=(source_height - crop_height) // 4 * 2,
        crop_left=(source_width - crop_width) // 4 * 2,
        crop_height=crop_height,
        crop_width=crop_width,
        target_height=target_height,
        target_width=target_width,
        paste_top=(target_height - paste_height) // 2,
        paste_left=(target_width - paste_width) // 2,
        paste_height=paste_height,
        paste_width=paste_width,
    )


@lru_cache(maxsize=_REMEMBERED)
def check(geometry: Geometry) -> None:
    """Whether a geometry from elsewhere describes a resize: all frames of a camera have one, which is checked once.

    Raises:
        GeometryError: a size is not positive or too large, or a rectangle does not lie inside its picture.
    """
    _check_size("source", geometry.source_height, geometry.source_width)
    _check_size("target", geometry.target_height, geometry.target_width)
    _check_inside("crop_height", geometry.crop_top, geometry.crop_height, "source_height", geometry.source_height)
    _check_inside("crop_width", geometry.crop_left, geometry.crop_width, "source_width", geometry.source_width)
    _check_inside("paste_height", geometry.paste_top, geometry.paste_height, "target_height", geometry.target_height)
    _check_inside("paste_width", geometry.paste_left, geometry.paste_width, "target_width", geometry.target_width)


def apply(image: _Picture, geometry: Geometry) -> _Picture:
    """Crop, resize and pad a picture to the geometry's target size.

    `image`: H×W or H×W×3, uint8 or uint16, of the source size or already reduced from it by a whole factor (as
    binning does: each side divided, rounded down). Pixels are averaged by area where no axis grows, and cubic
    otherwise; padding is 0. Returns the image itself, or a view of it, where no pixel changes.

    Raises:
        GeometryError: the image has neither the source size nor a whole fraction of it.
    """
    factor = _reduction(image, geometry)
    top, bottom = _span(geometry.crop_top, geometry.crop_height, factor)
    left, right = _span(geometry.crop_left, geometry.crop_width, factor)
    picture: Any = image[top:bottom, left:right]
    size = (geometry.paste_width, geometry.paste_height)
    if picture.shape[:2] != size[::-1]:
        shrinks = picture.shape[0] >= geometry.paste_height and picture.shape[1] >= geometry.paste_width
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)
    below = geometry.target_height - geometry.paste_top - geometry.paste_height
    right_of = geometry.target_width - geometry.paste_left - geometry.paste_width
    if geometry.paste_top or below or geometry.paste_left or right_of:
        margins = (geometry.paste_top, below, geometry.paste_left, right_of)
        picture = cv2.copyMakeBorder(picture, *margins, cv2.BORDER_CONSTANT, value=0)
    return image if picture.shape == image.shape and np.shares_memory(picture, image) else picture


def to_source(mask: npt.NDArray[np.uint8], geometry: Geometry, fill: int) -> npt.NDArray[np.uint8]:
    """Lay a mask of the target size back onto the source: the inverse of `apply`, by the nearest pixel.

    `mask`: H×W uint8 class ids. What `apply` cut off, and so no model has seen, becomes `fill`. Returns the mask
    itself where target and source are the same.

    Raises:
        GeometryError: the mask has not the target size.
    """
    target = (geometry.target_height, geometry.target_width)
    if mask.shape != target:
        raise GeometryError(f"mask is {_by(mask.shape)}, its geometry's target {_by(target)}: they must be the same")
    pasted: Any = mask[
        geometry.paste_top : geometry.paste_top + geometry.paste_height,
        geometry.paste_left : geometry.paste_left + geometry.paste_width,
    ]
    size = (geometry.crop_width, geometry.crop_height)
    if pasted.shape != size[::-1]:
        pasted = cv2.resize(pasted, size, interpolation=cv2.INTER_NEAREST_EXACT)
    source = (geometry.source_height, geometry.source_width)
    if pasted.shape == source:
        return mask if source == target else pasted
    laid = np.full(source, fill, np.uint8)
    laid[
        geometry.crop_top : geometry.crop_top + geometry.crop_height,
        geometry.crop_left : geometry.crop_left + geometry.crop_width,
    ] = pasted
    return laid


def _even(length: float, limit: int) -> int:
    """The even number nearest to `length`, at least 1 and at most `limit`; all of `limit` where that is nearer."""
    return limit if length > limit - 1 else max(1, min(limit, round(length / 2) * 2))


def _reduction(image: Pixels, geometry: Geometry) -> int:
    """By which whole factor the image is smaller than the source."""
    height, width = image.shape[:2]
    factor = geometry.source_height // height if height else 0
    if factor < 1 or (geometry.source_height // factor, geometry.source_width // factor) != (height, width):
        source = _by((geometry.source_height, geometry.source_width))
        raise GeometryError(f"picture is {_by(image.shape)}, its geometry's source {source}: plan one for this picture")
    return factor


def _span(start: int, length: int, factor: int) -> tuple[int, int]:
    """First and past-last pixel of a stretch of source pixels in a picture reduced by `factor`; at least one."""
    first = start // factor
    return first, max(first + 1, (start + length) // factor)


def _check_size(kind: str, height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise GeometryError(
            f"{kind} is {_by((height, width))}: give sides from 1 to {MAX_SIDE} and at most {MAX_PIXELS} pixels"
        )


def _check_inside(name: str, start: int, length: int, limit_name: str, limit: int) -> None:
    if length < 1 or start + length > limit:
        raise GeometryError(
            f"geometry's {name} is {length} from {start}: it must be positive and end inside {limit_name} {limit}"
        )


def _by(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}×{shape[1]}" if len(shape) > 1 else f"of shape {shape}"
