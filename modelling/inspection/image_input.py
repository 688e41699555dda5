"""Derives how a third-party model takes an image: axis order, size, and the numbers that pixels become."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from modelling.inspection.model_tensors import Tensor, image_sides, possible_axes
from modelling.inspection.output_rule import Options, UndecidedError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.inference.engine import EngineError
from shared.inference.pre_postprocess import quantised_levels
from shared.models.manifest import MAX_SIDE, NORMALIZATIONS, AxisOrder, InputSection

GUESSED_SIZE = (512, 1024)  # Height and width of a model that accepts any size.

_TOLERANCE = 0.03  # Difference of a quantised range from a normalisation's, relative to its span.
_QUANTISED_BITS = 8  # Inputs of more bits are symmetric around 0, whatever the range of the image is.


def image_section(
    path: Path,
    image: Tensor,
    options: Options,
    size: tuple[int, int] | None,
    *,
    scale: Callable[[Tensor], tuple[float, str]],
    works: Callable[[InputSection], bool],
) -> tuple[InputSection, bool, list[str]]:
    """Returns the manifest's section of an image input, whether it is N×3×H×W, and notes.

    `scale` returns the factor for a float input and the reason, and `works` whether the model runs with a section.

    Raises:
        EngineError: the model does not take such an image.
        UndecidedError: several readings are possible.
    """
    notes: list[str] = []
    possible = possible_axes(image)
    if options.axes is not None and options.axes not in possible:
        raise EngineError(path, f"takes {image}, which is {possible[0]}: leave --axes out")
    keys = {
        "tensor": image.name,
        "layout": options.layout or Layout.RGB8,
        "resize": options.resize or Resize.CROP,
        **_numbers(path, image, options, notes, scale),
    }
    sections = {
        axes: InputSection.model_validate(
            {**keys, "axes": axes if len(possible) > 1 else None, **_size(path, image, axes, size)}
        )
        for axes in ((options.axes,) if options.axes else possible)
    }
    if len(sections) > 1:
        sections = {axes: section for axes, section in sections.items() if works(section)}
        if len(sections) != 1:
            raise UndecidedError(path, f"{image} does not show its axis order: give --axes nhwc or nchw")
        notes.append(f"{image} runs as {next(iter(sections))} only (input.axes)")
    ((axes, section),) = sections.items()
    sides = (None, None) if image.shape is None else image_sides(image.shape, axes)
    if image.shape and image.shape[0] is not None:
        notes.append(f"the input has a fixed batch size of {image.shape[0]}: frames are run {image.shape[0]} at a time")
    if size is None and None in sides:
        notes.append(f"the graph accepts any input size: {section.height}×{section.width} is guessed (--size)")
    guessed = [] if options.layout else ["its channel order: rgb8 is guessed (--layout)"]
    guessed += [] if options.resize else ["how its images are resized: crop is guessed (--resize)"]
    if guessed:
        notes.append(f"a graph does not declare {', and '.join(guessed)}")
    return section, axes is AxisOrder.NCHW, notes


def _size(path: Path, image: Tensor, axes: AxisOrder, size: tuple[int, int] | None) -> dict[str, int]:
    """Returns the height and width of the input: the graph's if they are fixed, else `size` or a guess."""
    sides = (None, None) if image.shape is None else image_sides(image.shape, axes)
    default = size or GUESSED_SIZE
    shape = (sides[0] or default[0], sides[1] or default[1])
    if size is not None and shape != size:
        raise EngineError(path, f"its input is {shape[0]}×{shape[1]}: leave the size out")
    if max(shape) > MAX_SIDE:
        raise EngineError(path, f"its input is {shape[0]}×{shape[1]}, and a side has at most {MAX_SIDE} pixels")
    return {"height": shape[0], "width": shape[1]}


def _numbers(
    path: Path, image: Tensor, options: Options, notes: list[str], scale: Callable[[Tensor], tuple[float, str]]
) -> dict[str, Any]:
    """Returns dtype, scaling and quantisation of the input."""
    given = _normalization(options.normalize, options.layout) if options.normalize else None
    numbers: dict[str, Any] = {"dtype": image.dtype}
    if image.quantization is not None:
        name = options.normalize or _range_of(path, image)
        step, zero_point = image.quantization
        quantization = {"quantization": {"scale": step, "zero_point": zero_point}}
        quantised = numbers | _normalization(name, options.layout) | quantization
        levels = quantised_levels(InputSection.model_validate({"tensor": "x", "height": 1, "width": 1, **quantised}))
        fed = "unchanged" if levels is None else f"as {levels.min()} to {levels.max()}"
        notes.append(f"{image.name} is quantised for images of {name}: pixels are fed {fed} (--normalize)")
        return numbers if levels is None else quantised
    if image.dtype in ("int8", "int16"):
        raise EngineError(
            path,
            f"takes {image} and does not show its quantisation: write the manifest by hand, with input.quantization",
        )
    if image.dtype.startswith("float") and given is not None:
        return numbers | given
    if given is not None and options.normalize != "0..255":
        raise EngineError(
            path, f"takes {image}, whose pixels are fed unchanged: give --normalize 0..255, or leave it out"
        )
    factor, reason = scale(image)
    notes.append(reason)
    return numbers | {"scale": factor}


def _normalization(name: str, layout: Layout | None) -> dict[str, Any]:
    """Returns the keys of a normalisation, whose numbers per channel are those of red, green and blue, in a layout."""
    keys, is_reversed = NORMALIZATIONS[name], layout is Layout.BGR8
    return {key: value[::-1] if is_reversed and isinstance(value, tuple) else value for key, value in keys.items()}


def _range_of(path: Path, image: Tensor) -> str:
    """Returns the normalisation whose range is that of a quantised input.

    Raises:
        UndecidedError: none is, or the range shows nothing.
    """
    assert image.quantization is not None
    step, zero_point = image.quantization
    limits = np.iinfo(image.dtype)
    lowest, highest = ((limit - zero_point) * step for limit in (limits.min, limits.max))
    for name, keys in NORMALIZATIONS.items():
        ends = (np.array([[0.0], [255.0]]) * keys["scale"] - keys.get("mean", 0.0)) / keys.get("std", 1.0)
        tolerance = _TOLERANCE * np.ptp(ends)
        is_near = abs(lowest - ends.min()) <= tolerance and abs(highest - ends.max()) <= tolerance
        if limits.bits == _QUANTISED_BITS and is_near:
            return name
    raise UndecidedError(
        path,
        f"{image} is quantised from {lowest:.4g} to {highest:.4g}, which does not show the range of the images that "
        f"it was trained on: give --normalize {' or '.join(NORMALIZATIONS)}",
    )
