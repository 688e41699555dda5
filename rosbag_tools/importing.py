"""Writes a data set as a bag: its images, and its label images as true labels."""

import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rosbag_tools.bag_format import check_target, remove_bag
from rosbag_tools.data_sets import DataSetLayout, ImagePattern
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError, unwritable_message
from shared.files import natural_key, natural_path_key, read_file
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.image_codecs import ImageCodecError
from shared.imaging.image_files import ImageFileError, decode_picture, decode_unchanged
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.labels import MAX_MASK_LABELS, Labels, labels_from
from shared.sanitize import printable

CAMERA = "/camera"
GAP_S = 10.0  # Time between two sequences in the bag.
UNLABELLED_ID = 255  # Class id of pixels without a class.

_START_NS = 1_700_000_000_000_000_000  # An arbitrary date, the same for every drive.
_FRAME_ID = "camera"
_UNSCORED = re.compile("unlabell?ed|void|ignored?|unused-[0-9]+", re.IGNORECASE)  # Names of ids that are not classes.
_COLOURS = 1 << 24  # Number of colours with 8 bits per channel.
_SHOWN = 5  # Maximum number of names, values or colours in an error.
_PNG_KINDS = {0: "grey", 2: "colour", 3: "palette", 4: "grey", 6: "colour"}  # By the colour type of the header.
_ROTATABLE = (b"Exif\0\0", b"eXIf")  # Beginnings of data that can hold an orientation.


class DataSetError(SkylaneError):
    """A folder is not a data set of the layout, or one of its images cannot be used."""


class DataSetFrame(NamedTuple):
    """An image, its label image if it has one, and its time since the first image."""

    image: Path
    truth: Path | None
    offset_ns: int


@dataclass(frozen=True, slots=True)
class DataSet:
    """The frames of a data set in order, and its label set."""

    frames: tuple[DataSetFrame, ...]
    sequences: int
    labels: Labels
    coloured: tuple[str, ...]

    @property
    def labelled(self) -> int:
        """The number of frames with a label image."""
        return sum(frame.truth is not None for frame in self.frames)


def find_frames(
    folder: Path,
    layout: DataSetLayout,
    *,
    images: str | None = None,
    truth: str | None = None,
    labels: Labels | None = None,
    rate_hz: float | None = None,
) -> DataSet:
    """Finds the images of a data set, their label images and their times.

    Args:
        folder: The folder of the data set.
        layout: Its layout, which the other arguments replace.
        images, truth: Patterns of the images and of the label images, relative to the folder.
        labels: The classes.
        rate_hz: Images per second, instead of the numbers in the names.

    Raises:
        DataSetError: files are missing or do not match, or their names have no times.
    """
    patterns = layout.patterns
    if images is not None and truth is not None:
        patterns = (ImagePattern(images, truth, patterns[0].labels if patterns else ""),)
    pattern, pairs = _pairs(folder, patterns)
    if rate_hz is None and not layout.rate_hz:
        raise DataSetError(f"{layout.description} has images without times: give --rate, the images per second")
    sequences: dict[Any, dict[int, Path]] = {}
    for image in sorted(pairs, key=lambda path: natural_path_key(path.relative_to(folder))):
        match = re.fullmatch(layout.name, image.stem) if layout.name and rate_hz is None else None
        if match is None and rate_hz is None:
            raise DataSetError(
                f"{image}: the name has no number of a frame, as {layout.description} has: give --rate, the images per second"
            )
        frames = sequences.setdefault((image.parent, match[1] if match else ""), {})
        number = int(match[2]) if match else len(frames)
        if number in frames:
            raise DataSetError(f"{frames[number]} and {image} have the same time: remove one, or give --rate")
        frames[number] = image
    in_order, count = _in_time(sequences, pairs, rate_hz or layout.rate_hz)
    return DataSet(in_order, count, labels or labels_from(pattern.labels), layout.coloured)


def write_drive(
    data: DataSet,
    path: Path,
    *,
    bag_format: str | None = None,
    compression: str = "none",
    overwrite: bool = False,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Writes a data set as a bag: `image_raw`, `labels` (mono8 class ids, 255 without a class) and `label_info`.

    The labels of a frame, and the names of the classes, have the stamp of its image. The bag appears at `path` when
    it is complete, and then replaces an existing one.

    Raises:
        DataSetError, ImageFileError: an image or a label image cannot be used.
        SkylaneError: the bag cannot be written.
    """
    check_target(path, overwrite=overwrite)
    reader = _LabelReader(data.labels, data.coloured)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            with BagWriter(draft, bag_format, compression) as writer:
                for frame in data.frames:
                    _write_frame(writer, frame, reader)
                    progress()
            if overwrite:
                remove_bag(path)
            draft.rename(path)
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, "OUT")) from error


def _write_frame(writer: BagWriter, frame: DataSetFrame, reader: "_LabelReader") -> None:
    stamp_ns = _START_NS + frame.offset_ns
    rgb = _read_image(frame.image)
    writer.write_image(f"{CAMERA}/image_raw", rgb, "rgb8", stamp_ns, stamp_ns, _FRAME_ID)
    if frame.truth is None:
        return
    mask = reader.read(frame.truth)
    if mask.shape != rgb.shape[:2]:
        (height, width), (rows, columns) = mask.shape, rgb.shape[:2]
        raise DataSetError(
            f"{frame.truth} is {width}×{height}, its image {frame.image.name} {columns}×{rows}: scale the images to the "
            "size of their label images, never the other way round"
        )
    writer.write_image(f"{CAMERA}/labels", mask, "mono8", stamp_ns, stamp_ns, _FRAME_ID)
    writer.write_label_info(
        f"{CAMERA}/label_info", reader.names, stamp_ns=stamp_ns, received_ns=stamp_ns, frame_id=_FRAME_ID
    )


def _pairs(folder: Path, patterns: tuple[ImagePattern, ...]) -> tuple[ImagePattern, dict[Path, Path | None]]:
    """Returns the first pattern that matches images and label images, and the label image (or None) by image."""
    looked = []
    for pattern in patterns:
        truths, images = _matches(folder, pattern.truth), _matches(folder, pattern.images)
        images = {key: path for key, path in images.items() if path not in truths.values()}
        if not images or not truths:
            looked.append(f"{pattern.images} ({len(images)} images) with {pattern.truth} ({len(truths)} label images)")
            continue
        if any(len(next(iter(images))) != len(key) for key in truths):
            raise DataSetError(f"{pattern.images} and {pattern.truth} have different numbers of *: give both the same")
        if alone := [path for key, path in truths.items() if key not in images]:
            raise DataSetError(
                f"{len(alone)} of {len(truths)} label images have no image in {pattern.images}, the first is {alone[0]}: "
                "add the images, or choose a part with --images and --truth"
            )
        return pattern, {path: truths.get(key) for key, path in images.items()}
    try:
        inside = sorted((path.name for path in folder.iterdir()), key=natural_key)
    except OSError as error:
        raise DataSetError(f"{folder} cannot be read: {error.strerror}") from error
    more = f" and {len(inside) - _SHOWN} more" if len(inside) > _SHOWN else ""
    raise DataSetError(
        f"{folder} is not of this layout: looked for {', or '.join(looked)}; it holds "
        f"{printable(', '.join(inside[:_SHOWN]))}{more or ('' if inside else 'nothing')}. Give the folder that holds these, "
        "or --images and --truth"
    )


def _matches(folder: Path, pattern: str) -> dict[tuple[str, ...], Path]:
    """Returns the files that match a pattern, by the texts in place of its `*`."""
    parts = pattern.split("/")
    if "*" not in pattern or "**" in pattern or set(pattern) & set("?[]") or {"", ".", ".."} & set(parts):
        raise DataSetError(
            f"pattern {printable(pattern)!r}: give a path inside the folder with * for what differs, such as 'images/*.png'"
        )
    name, dot, suffix = pattern.rpartition(".")
    if not suffix.isalnum():
        name, dot, suffix = pattern, "", ""
    named = re.compile("([^/]*)".join(map(re.escape, name.split("*"))) + re.escape(dot) + f"(?i:{suffix})")
    found: dict[tuple[str, ...], Path] = {}
    for path in folder.glob(name + dot + "".join(f"[{each.lower()}{each.upper()}]" for each in suffix)):
        relative = path.relative_to(folder)
        match = named.fullmatch(relative.as_posix())
        if match is not None and path.is_file() and not any(part.startswith(".") for part in relative.parts):
            if match.groups() in found:
                raise DataSetError(f"{found[match.groups()]} and {path} have the same name: remove one")
            found[match.groups()] = path
    return found


def _in_time(
    sequences: Mapping[Any, Mapping[int, Path]], truths: Mapping[Path, Path | None], rate_hz: float
) -> tuple[tuple[DataSetFrame, ...], int]:
    """Returns the frames of all sequences one after the other, and the number of sequences without a longer pause."""
    found: list[DataSetFrame] = []
    offset_ns, count = -round(GAP_S * 1e9), 0
    for frames in sequences.values():
        before = None
        for number, image in sorted(frames.items()):
            step_s = 0.0 if before is None else (number - before) / rate_hz
            if before is None or (step_s > GAP_S and number > before + 1):
                step_s, count = GAP_S, count + 1
            offset_ns += round(step_s * 1e9)
            found.append(DataSetFrame(image, truths[image], offset_ns))
            before = number
    return tuple(found), count


def _data_of(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise ImageFileError(path, f"cannot be read ({error.strerror})") from error


def _read_image(path: Path) -> npt.NDArray[np.uint8]:
    """Returns an image as H×W×3 uint8, RGB."""
    data = _data_of(path)
    try:
        pixels = decode_picture(data, upright=False)
        is_upright = not any(each in data for each in _ROTATABLE) or np.array_equal(pixels, decode_picture(data))
    except ImageCodecError as error:
        raise ImageFileError(path, str(error)) from error
    if not is_upright:
        raise ImageFileError(path, "its EXIF data rotates it, its label image may not be: save both upright")
    if pixels.dtype != np.uint8:
        raise ImageFileError(path, "has 16 bits: save it with 8")
    return to_colour(pixels, Layout.BGR8 if pixels.ndim == 3 else Layout.MONO8, Layout.RGB8, "bilinear")  # H×W×3


class _LabelReader:
    """Reads label images as masks of class ids; `names` are those of the classes, "" for ids without one."""

    def __init__(self, labels: Labels, coloured: tuple[str, ...]) -> None:
        self._labels, self._coloured = labels, coloured
        names = ["" if _UNSCORED.fullmatch(name) else name for name in labels.names[:UNLABELLED_ID]]
        self._by_id = np.full(MAX_MASK_LABELS, -1, np.int16)  # Class ids by value of a pixel; -1 is unknown.
        self._by_id[: len(names)] = [class_id if name else UNLABELLED_ID for class_id, name in enumerate(names)]
        self._by_id[UNLABELLED_ID] = UNLABELLED_ID
        while names and not names[-1]:
            names.pop()
        if not names:
            raise DataSetError("the label file has no class: all its names mean that a pixel has no label")
        self.names = tuple(names)
        self._by_colour: npt.NDArray[np.int16] | None = None

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Returns a label image as H×W class ids.

        Raises:
            ImageFileError: the file is no PNG, is transparent, or has colours or ids that are not in the label file.
        """
        data = _data_of(path)
        try:
            kind = read_header(data).kind
        except ImageHeaderError as error:
            raise ImageFileError(path, f"label images must be PNG: {error}") from error
        if kind != "png":
            raise ImageFileError(
                path, "is a JPEG, which changes labels where classes meet: get the label images as PNG"
            )
        bits, colour_type = data[24], data[25]  # Fields of the PNG header.
        kind = _PNG_KINDS[colour_type]
        has_colours = kind in self._coloured
        palette = _palette_of(data)
        if kind == "palette" and not has_colours:
            data = _without_palette(data)
        try:
            pixels = decode_unchanged(data)
        except ImageCodecError as error:
            raise ImageFileError(path, str(error)) from error
        if pixels.ndim == 3 and pixels.shape[2] == 4:  # Blue, green, red and opacity.
            if (pixels[..., 3] != np.iinfo(pixels.dtype).max).any():
                raise ImageFileError(path, "has transparent pixels, which have no class: save it without transparency")
            pixels = pixels[..., :3]
        if pixels.dtype != np.uint8 and (has_colours or pixels.max() > UNLABELLED_ID):
            raise ImageFileError(
                path,
                f"has 16-bit values up to {pixels.max()}, such as ids of instances: give the images with class ids",
            )
        if has_colours:
            colours = pixels.astype(np.int32) @ (1, 1 << 8, 1 << 16) if pixels.ndim == 3 else pixels * np.int32(0x10101)
            return self._translated(path, self._colour_ids(), colours, "colours", _as_rgb)
        ids = pixels[..., 0] if pixels.ndim == 3 else pixels  # Grey with opacity is decoded to colour.
        if bits < 8:  # OpenCV spreads small numbers over 0 to 255.
            ids = ids // (UNLABELLED_ID // ((1 << bits) - 1))
        self._check_palette(path, palette, np.unique(ids).tolist())
        return self._translated(path, self._by_id, ids, "ids", str)

    def _check_palette(self, path: Path, palette: Sequence[tuple[int, ...]], indices: Sequence[int]) -> None:
        """Refuses a palette whose indices are not class ids: most of its colours are those of other classes."""
        known = self._labels.colours
        shown = {index: palette[index] for index in indices if index < min(len(palette), UNLABELLED_ID)}
        equal = {index: colour for index, colour in shown.items() if colour in known}
        if len(equal) < 2 or 2 * len(equal) < len(shown):  # A few colours may be equal by chance.
            return
        for index, colour in equal.items():
            if index >= len(known) or known[index] != colour:
                name = self._labels.names[known.index(colour)]
                raise ImageFileError(
                    path,
                    f"has a palette with the colours of the classes in another order: index {index} has that of {name}, "
                    "and indices are read as class ids: save it with class ids, or give a layout of coloured labels",
                )

    def _colour_ids(self) -> npt.NDArray[np.int16]:
        """Returns the class ids by colour; -1 is unknown."""
        if self._by_colour is None:
            self._by_colour = np.full(_COLOURS, -1, np.int16)
            for class_id, (red, green, blue) in enumerate(self._labels.colours[:UNLABELLED_ID]):
                colour, own = red << 16 | green << 8 | blue, self._by_id[class_id]
                if self._by_colour[colour] not in (-1, own):
                    raise DataSetError(
                        f"the label file has the colour {_as_rgb(colour)} twice, the second time for "
                        f"{self._labels.names[class_id]}: the label images are coloured, so give each class its own colour"
                    )
                self._by_colour[colour] = own
        return self._by_colour

    def _translated(
        self, path: Path, table: npt.NDArray[np.int16], values: Any, noun: str, shown: Callable[[int], str]
    ) -> npt.NDArray[np.uint8]:
        found = table[values]
        if (unknown := values[found < 0]).size:
            counts = Counter(unknown.tolist()).most_common()
            listed = ", ".join(f"{shown(value)} ({count} pixels)" for value, count in counts[:_SHOWN])
            more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
            raise ImageFileError(path, f"has {noun} that the label file does not have: {listed}{more}; give --labels")
        return np.asarray(found, np.uint8)


def _as_rgb(colour: int) -> str:
    return str([colour >> 16, colour >> 8 & 255, colour & 255])


def _palette_of(data: bytes) -> list[tuple[int, ...]]:
    """Returns the RGB colours of a PNG's palette; empty without a palette."""
    at = data.find(b"PLTE")
    length = struct.unpack_from(">I", data, at - 4)[0] if at >= 0 and _PNG_KINDS[data[25]] == "palette" else 0
    levels = data[at + 4 : at + 4 + length]
    return list(zip(levels[::3], levels[1::3], levels[2::3], strict=False))


def _without_palette(data: bytes) -> bytes:
    """Returns the PNG declared as grey, so that its values are the indices of its palette."""
    begin, at, kept = data[:8], 33, []
    header = bytearray(data[12:29])  # The name and the content of the first chunk.
    header[13] = 0  # The colour type.
    while at + 12 <= len(data):  # Length, name and checksum; a file that is cut is refused by its decoder.
        length = struct.unpack_from(">I", data, at)[0]
        if data[at + 4 : at + 8] not in (b"PLTE", b"tRNS", b"bKGD", b"hIST", b"sBIT"):
            kept.append(data[at : at + 12 + length])
        at += 12 + length
    return b"".join((begin, data[8:12], header, struct.pack(">I", zlib.crc32(header)), *kept))
