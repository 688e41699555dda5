"""Cropping, resizing and padding of an image to a model's input size, and the inverse for masks."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from shared.errors import SkylaneError
from shared.imaging.frames import Layout, Pixels
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE, cv2

UNSEEN = 255  # Class id of pixels that were cropped off before inference.
_CACHED_CHECKS = 64  # Each camera has one geometry.

_Image = TypeVar("_Image", bound=Pixels)
_Length = Annotated[int, Meta(ge=0, le=MAX_SIDE)]


class GeometryError(SkylaneError):
    """A geometry is not a possible resize, or an image does not fit it."""


class Resize(StrEnum):
    """The strategies for converting an image to another aspect ratio."""

    CROP = "crop"  # Fit one axis and crop the other around the centre. No distortion; margins are lost.
    LETTERBOX = "letterbox"  # Fit the whole image and pad with black (0). No distortion; nothing is lost.
    STRETCH = "stretch"  # Scale each axis independently. Distorts.


class Geometry(Struct, frozen=True):
    """A resize: the `crop` rectangle of the source image becomes the `paste` rectangle of the target image.

    All values are in pixels. The source is the sensor's image, even if a binned image of half its size is resized.
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
    """Computes the geometry that resizes a source image to a target size.

    The start and size of a crop are even, so that binning the source first crops it at the same place.

    Raises:
        GeometryError: A size is not positive, or too large.
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


@lru_cache(maxsize=_CACHED_CHECKS)
def check(geometry: Geometry) -> None:
    """Validates a received geometry. Cached, because all frames of a camera share one.

    Raises:
        GeometryError: A size is not positive or too large, or a rectangle is not inside its image.
    """
    _check_size("source", geometry.source_height, geometry.source_width)
    _check_size("target", geometry.target_height, geometry.target_width)
    _check_inside("crop_height", geometry.crop_top, geometry.crop_height, "source_height", geometry.source_height)
    _check_inside("crop_width", geometry.crop_left, geometry.crop_width, "source_width", geometry.source_width)
    _check_inside("paste_height", geometry.paste_top, geometry.paste_height, "target_height", geometry.target_height)
    _check_inside("paste_width", geometry.paste_left, geometry.paste_width, "target_width", geometry.target_width)


def apply(image: _Image, geometry: Geometry) -> _Image:
    """Crops, resizes and pads an image to the target size of the geometry.

    Interpolates by area if no axis grows, and bicubically otherwise. Pads with 0. Returns the image itself or a view of
    it if no pixel changes.

    Args:
        image: H×W or H×W×3, uint8 or uint16, of the source size, or of the source size divided by an integer and
            rounded down (binning).
        geometry: The resize to apply.

    Raises:
        GeometryError: The image has neither the source size nor an integer fraction of it.
    """
    factor = _reduction(image, geometry)
    top, bottom = _span(geometry.crop_top, geometry.crop_height, factor)
    left, right = _span(geometry.crop_left, geometry.crop_width, factor)
    resized: Any = image[top:bottom, left:right]
    size = (geometry.paste_width, geometry.paste_height)
    if resized.shape[:2] != size[::-1]:
        shrinks = resized.shape[0] >= geometry.paste_height and resized.shape[1] >= geometry.paste_width
        resized = cv2.resize(resized, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC)
    below = geometry.target_height - geometry.paste_top - geometry.paste_height
    right_of = geometry.target_width - geometry.paste_left - geometry.paste_width
    if geometry.paste_top or below or geometry.paste_left or right_of:
        margins = (geometry.paste_top, below, geometry.paste_left, right_of)
        resized = cv2.copyMakeBorder(resized, *margins, cv2.BORDER_CONSTANT, value=0)
    return image if resized.shape == image.shape and np.shares_memory(resized, image) else resized


def to_source(mask: npt.NDArray[np.uint8], geometry: Geometry, fill: int) -> npt.NDArray[np.uint8]:
    """Scales a mask from the target size to the source size: the inverse of `apply`, with nearest-neighbour sampling.

    `mask`: H×W uint8 class ids. Pixels that `apply` cropped off become `fill`. Returns the mask itself if target and
    source have the same size.

    Raises:
        GeometryError: The mask does not have the target size.
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
    result = np.full(source, fill, np.uint8)
    result[
        geometry.crop_top : geometry.crop_top + geometry.crop_height,
        geometry.crop_left : geometry.crop_left + geometry.crop_width,
    ] = pasted
    return result


def rgb_input(image: Pixels, geometry: Geometry, layout: Layout) -> npt.NDArray[np.uint8]:
    """Returns the input of a model as RGB, H×W×3 uint8.

    `image`: in the colour order `layout`; of the size of the model's input, or as demosaiced.
    """
    shown: Any = image
    if image.shape[:2] != (geometry.target_height, geometry.target_width):
        shown = apply(image, geometry)
    rgb: npt.NDArray[np.uint8] = cv2.cvtColor(shown, cv2.COLOR_BGR2RGB) if layout is Layout.BGR8 else shown
    return rgb


def _even(length: float, limit: int) -> int:
    """Rounds to an even number from 1 to `limit`, or to `limit` itself if that is nearer."""
    return limit if length > limit - 1 else max(1, min(limit, round(length / 2) * 2))


def _reduction(image: Pixels, geometry: Geometry) -> int:
    """Returns the integer factor by which the image is smaller than the source."""
    height, width = image.shape[:2]
    factor = geometry.source_height // height if height else 0
    if factor < 1 or (geometry.source_height // factor, geometry.source_width // factor) != (height, width):
        source = _by((geometry.source_height, geometry.source_width))
        raise GeometryError(
            f"image is {_by(image.shape)}, its geometry's source {source}: plan a geometry for this image"
        )
    return factor


def _span(start: int, length: int, factor: int) -> tuple[int, int]:
    """Converts a range of source pixels to start and stop in an image reduced by `factor`; at least one pixel."""
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
