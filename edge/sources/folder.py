"""The folder source: image files in the natural order of their names, with times from the names or from a list."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from edge.sources.source import IMAGE_SUFFIXES, SourceError
from shared import clock
from shared.errors import SkylaneError
from shared.files import file_sha256, natural_key, natural_path_key, open_file
from shared.imaging.bit_depth import MEASURED_FRAMES, BitDepth, Bits
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame, names_depth
from shared.imaging.image_files import decode_picture
from shared.imaging.opencv import MAX_PIXELS
from shared.logs import get_logger
from shared.sanitize import printable

_RATE_HZ = 10.0  # Rate of images whose times are unknown.
_PERIOD_NS = round(1e9 / _RATE_HZ)
_MAX_BYTES = 8 * MAX_PIXELS  # Larger than any accepted image without compression.
_DEPTH = 3  # Levels of subfolders: EuRoC has mav0/CAMERA/data.

_WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_LABEL_WORD = re.compile(  # In names of folders: SegmentationClass, gtFine, trainannot, label_images.
    "label(s|led|ed)?|lbls?|masks?|[a-z]*annot(ation)?s?|anns?|(sem)?segm?|segmentations?|semantics?|instances?|panoptic|gt|(ground)?truth"
)

_NO_LOSS = (*IMAGE_SUFFIXES, "", ".txt", ".csv", ".json", ".yaml", ".yml", ".xml", ".md")  # Never reported as left out.

_LOG = get_logger("edge")


class _Image(NamedTuple):
    """An image file, with its time and its index among the played images of its camera."""

    time_ns: int
    camera: str
    number: int
    path: Path


class FolderSource:
    """A folder of images as one camera, or of subfolders with the images of one camera each.

    The times of the images are those in their names or in a list beside them, see `read_times`; without them, there are
    10 images per second and camera. Colour images become bgr8, grey images mono8 or mono16. `skylane bag extract` writes
    such subfolders; `topics` are their names.
    """

    def __init__(
        self,
        path: Path,
        *,
        topics: Sequence[str] = (),
        start_offset_s: float = 0.0,
        duration_s: float | None = None,
        bits: Bits = "auto",
    ) -> None:
        self._path = path
        self._notes: list[str] = []
        cameras = self._cameras(topics)
        times = self._times(cameras)
        start_ns = min(map(min, times.values())) + round(start_offset_s * 1e9)
        end_ns = None if duration_s is None else start_ns + round(duration_s * 1e9)
        self._images: list[_Image] = []
        for camera, images in cameras.items():
            chosen = (
                (time_ns, image)
                for time_ns, image in sorted(zip(times[camera], images, strict=True), key=itemgetter(0))
                if time_ns >= start_ns and (end_ns is None or time_ns < end_ns)
            )
            self._images += [_Image(time_ns, camera, index, image) for index, (time_ns, image) in enumerate(chosen)]
        self._images.sort(key=lambda image: (image.time_ns, natural_key(image.camera)))
        if not self._images:
            total = sum(map(len, cameras.values()))
            raise SourceError(f"folder {path} has {total} images, none of them in the selected time")
        self._depths = {camera: BitDepth(camera, bits, self._note) for camera in cameras}
        for camera, depth in self._depths.items():
            depth.measure(_first_images(cameras[camera]))

    @property
    def frame_count(self) -> int | None:
        """See FrameSource."""
        return len(self._images)

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource. `rate_hz` applies to images whose times are unknown."""
        digest = hashlib.sha256()
        for image in self._images:
            name = str(image.path.relative_to(self._path)).encode("utf-8", "surrogateescape")
            digest.update(name + b"\0" + _content_hash(image.path))
            if image.camera in self._with_lists:
                digest.update(str(image.time_ns).encode())
        identity: dict[str, str | int | float | list[str]] = {
            "kind": "folder",
            "path": self._path.name,
            "sha256": digest.hexdigest(),
        }
        return identity | ({"rate_hz": _RATE_HZ} if self._is_invented else {}) | {"notes": [*self._notes]}

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for time_ns, camera, index, path in self._images:
            started_ns = clock.now_ns()
            try:
                pixels = _read(path)
                layout = Layout.BGR8 if pixels.ndim == 3 else Layout(f"mono{8 * pixels.itemsize}")  # H×W×3
                pixels = self._depths[camera].scaled(pixels, layout, index)
            except SkylaneError as error:
                reason = f"{path.name}: {error}"
                yield UnreadableFrame(camera, index, time_ns, time_ns, clock.now_ns() - started_ns, printable(reason))
                continue
            yield Frame(pixels, layout, camera, index, time_ns, time_ns, clock.now_ns() - started_ns)

    def close(self) -> None:
        """See FrameSource. No file stays open."""

    def _cameras(self, wanted: Sequence[str]) -> dict[str, list[Path]]:
        """Returns the image files of each camera in order."""
        path = self._path
        try:
            images = _images(path)
            cameras = {path.name: images} if images else dict(_subfolders(path, _DEPTH))
        except OSError as error:
            raise SourceError(f"{error.filename} cannot be read ({error.strerror}): give a readable folder") from error
        if images and wanted:
            raise SourceError(f"folder {path} holds one camera: leave --topic out")
        if unknown := set(wanted) - set(cameras):
            raise SourceError(f"folder {path} has no camera {min(unknown)!r}: it has {', '.join(cameras)}")
        if not wanted:
            self._note_left_out({images[0].parent for images in cameras.values()})
        others = {} if wanted else {name: reason for name in cameras if (reason := no_camera(name))}
        if wanted or len(others) == len(cameras):
            return {name: images for name, images in cameras.items() if not wanted or name in wanted}
        for name, reason in others.items():
            self._note(
                f"{name} is not taken for a camera, because its name says that it holds {reason}: name it by --topic"
            )
        return {name: images for name, images in cameras.items() if name not in others}

    def _note_left_out(self, played: set[Path]) -> None:
        """Notes the files that are not images, and the folders whose images are not played."""
        left: list[Path] = []
        for name, _, files in os.walk(self._path):
            others = [Path(name, file) for file in files if Path(file).suffix.lower() not in _NO_LOSS]
            has_images = any(file.lower().endswith(IMAGE_SUFFIXES) for file in files)
            left += others if Path(name) in played else [Path(name)] * has_images
        if left:
            names = [str(path.relative_to(self._path)) for path in sorted(left, key=natural_path_key)[:3]]
            self._note(f"not played: {', '.join(names)} (total: {len(left)})")

    def _times(self, cameras: dict[str, list[Path]]) -> dict[str, Sequence[int]]:
        """Returns the times of each camera's images, in ns."""
        read = {camera: read_times(images) for camera, images in cameras.items()}
        problems = [f"{camera}: {times.problem}" for camera, times in read.items() if times.problem]
        if len({times.is_absolute for times in read.values()}) > 1 and not problems:
            problems = ["some cameras have dates, others times since a start"]
        self._is_invented = bool(problems)
        self._with_lists = set() if problems else {camera for camera, times in read.items() if times.is_listed}
        if not problems:
            return {camera: times.times_ns for camera, times in read.items()}
        self._note(f"the stamps and the rate of {_RATE_HZ:g} images per second are invented: {'; '.join(problems)}")
        return {camera: range(0, len(images) * _PERIOD_NS, _PERIOD_NS) for camera, images in cameras.items()}

    def _note(self, text: str) -> None:
        self._notes.append(printable(text))
        _LOG.warning("source noted", source=self._path.name, reason=self._notes[-1])


def no_camera(name: str) -> str:
    """Returns a description of images that no camera took, such as labels, by the folder's name; otherwise empty."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(map(_LABEL_WORD.fullmatch, words)):
        return "label images"
    return "distances" if names_depth(name) else ""


def _subfolders(path: Path, depth: int, prefix: str = "") -> Iterator[tuple[str, list[Path]]]:
    """Yields the subfolders that hold images, by name; CAMERA/data is called CAMERA."""
    for folder in sorted((item for item in path.iterdir() if item.is_dir()), key=natural_path_key):
        if images := _images(folder):
            yield prefix.rstrip("/") if prefix and folder.name == "data" else prefix + folder.name, images
        elif depth > 1:
            yield from _subfolders(folder, depth - 1, f"{prefix}{folder.name}/")


def _images(path: Path) -> list[Path]:
    return sorted((item for item in path.iterdir() if item.suffix.lower() in IMAGE_SUFFIXES), key=natural_path_key)


def _content_hash(path: Path) -> bytes:
    """Returns the SHA-256 of a file; empty if it is not a regular file or cannot be read."""
    try:
        return bytes.fromhex(file_sha256(path)) if path.is_file() else b""
    except OSError:
        return b""


def _first_images(images: Sequence[Path]) -> Iterator[Pixels]:
    """Yields the first images of a camera that can be read."""
    for path in images[:MEASURED_FRAMES]:
        with suppress(SkylaneError):
            yield _read(path)


def _read(path: Path) -> Pixels:
    """Returns an image as H×W×3 (BGR) or H×W, uint8 or uint16.

    Raises:
        SkylaneError: the path is not a regular file, or the image cannot be read.
    """
    try:
        if not path.is_file():
            raise SourceError("it is not a file")
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"it is larger than {_MAX_BYTES} bytes: give a smaller image")
        return decode_picture(path.read_bytes())
    except OSError as error:
        raise SourceError(f"it cannot be read ({error.strerror})") from error


_UNITS_NS = (10**9, 10**6, 10**3, 1)  # Seconds, milliseconds, microseconds, nanoseconds.
# Numbers of seconds after 2038 could be dates such as 2301311259. Some recordings count from the epoch of GPS, 1980.
_EARLIEST_NS, _LATEST_NS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9 for year in (1980, 2038))
_PERIODS_NS = (100_000, 3600 * 10**9)  # Plausible times between images; closer numbers are counters.
_TIME = re.compile(
    # Ten digits that are a year, month, day and hour are not a number of seconds.
    r"(?<![0-9.])(?!(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3]))"
    r"(?:([0-9]{9,10})([._-])([0-9]{1,9})"  # Seconds and their fraction.
    r"|([0-9]{11,19}|[0-9]{9,10}(?![_-]?[0-9])))(?![0-9.])"
)
_EXTRACTED = re.compile(r"([0-9]{6}|[1-9][0-9]{6})_(0|[1-9][0-9]{0,18})")  # `skylane bag extract`: index and stamp.
_REPR_DIGITS = 7  # Decimals of a date in seconds as a `float`, written without trailing zeros.
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_LIST_SUFFIXES = (".txt", ".csv")
_LISTS_READ = 20  # Maximum number of files of a folder that are read as lists.
_SEPARATOR = re.compile(r"[,;\t]")
_FINE_UNIT = re.compile(r"(^|[^a-z])([mun]s|milli|micro|nano)", re.IGNORECASE)  # A unit in a column title.
_TIME_TITLE = re.compile("time|stamp|sec", re.IGNORECASE)
_DATE_AND_TIME = re.compile(r"(\d{4}-\d\d-\d\d) +(\d\d:)", re.ASCII)
_MAX_LIST_BYTES = 1 << 24
_LINE_BYTES = 512  # Maximum length of an image's line in a list of any name.
_TIME_WORDS = {"time", "times", "timestamp", "timestamps"}
_IMAGE_WORDS = {"image", "images", "img", "frame", "frames", "cam", "camera", "left", "right", "rgb", "color", "gray"}
_NO_TIMES = "the names hold no times, and there is no list of times"


@dataclass(frozen=True, slots=True)
class ImageTimes:
    """The times of a camera's images, or the problem if they are unknown."""

    times_ns: tuple[int, ...] = ()  # One per image, all different; empty if unknown.
    problem: str = ""
    is_listed: bool = False  # True if the times come from a list, not from the names.

    @property
    def is_absolute(self) -> bool:
        """True if the times are dates, not times since the start of the recording."""
        return max(self.times_ns, default=0) >= _EARLIEST_NS


def read_times(images: Sequence[Path]) -> ImageTimes:
    """Reads the times of a camera's image files, which are given in order.

    A list of times counts if it has one for each image, which it names or follows in order; otherwise the names count if
    each has exactly one time between 1980 and 2038, or is one that `skylane bag extract` writes.
    """
    reasons = []
    for path in sorted(_lists(images), key=lambda path: not _is_named_list(path, images[0].parent)):
        listed = _listed(path, images)
        if listed.times_ns:
            return replace(listed, is_listed=True)
        reasons += [listed.problem] if listed.problem else []
    listed = ImageTimes(problem="; ".join(reasons))
    names, stems = [path.name for path in images], [path.stem for path in images]
    readings = [_checked([*_times_in(stems)], names), _checked(_extracted(stems), names)]
    plausible = {reading for reading in readings if reading.times_ns}
    if len(plausible) > 1:
        return ImageTimes(problem=f"the number in {printable(names[0])} can be a time in two units")
    problems = [listed, *sorted(readings, key=lambda reading: reading.problem == _NO_TIMES)]
    return plausible.pop() if plausible else next(reading for reading in problems if reading.problem)


def _times_in(stems: Sequence[str]) -> Iterator[int | None]:
    """Yields the plausible time in each name, in ns; None for a name without one, or with several."""
    matches = [_TIME.findall(stem) for stem in stems]
    numbers = [int(number) for times in matches for *_, number in times if number]
    if {later - earlier for earlier, later in pairwise(numbers)} == {1}:  # The numbers count the images.
        matches = [[]] * len(stems)
    fractions = [(mark, digits) for times in matches for _, mark, digits, _ in times if mark]
    widths = {len(digits) for _, digits in fractions}
    is_decimal = all(mark == "." for mark, _ in fractions)
    is_count = all(mark != "." for mark, _ in fractions) and 9 in widths  # Nanoseconds, padded or not.
    if is_decimal and len(widths) > 1:  # A printed `float` has no trailing zeros; otherwise digits may be unpadded.
        is_decimal = max(widths) <= _REPR_DIGITS and not any(digits[1:].endswith("0") for _, digits in fractions)
    is_certain = is_decimal or is_count or widths == {6}
    for times in matches:
        plausible = []
        for seconds, _, digits, number in times:
            fraction_ns = int(digits or 0) if is_count else int(digits.ljust(9, "0"))
            values = [int(number) * unit for unit in _UNITS_NS] if number else [int(seconds) * 10**9 + fraction_ns]
            plausible += [value for value in values if _EARLIEST_NS <= value < _LATEST_NS and (number or is_certain)]
        yield plausible[0] if len(plausible) == 1 else None


def _extracted(stems: Sequence[str]) -> list[int | None]:
    """Returns the stamps in names that `skylane bag extract` writes; None for other names."""
    pairs = [(int(match[1]), int(match[2])) for stem in stems if (match := _EXTRACTED.fullmatch(stem))]
    do_increase = all(earlier < later for pair in pairwise(pairs) for earlier, later in zip(*pair, strict=True))
    if len(pairs) < len(stems) or not do_increase or pairs[-1][1] >= _LATEST_NS:
        return [None] * len(stems)
    return [stamp_ns for _, stamp_ns in pairs]


def _lists(images: Sequence[Path]) -> Iterator[Path]:
    """Yields the files beside the images, or beside their folder, that may be lists of times, likely names first."""
    stems, folder = {image.stem for image in images}, images[0].parent
    for place in (folder, folder.parent):
        try:
            entries = list(place.iterdir())
        except OSError:  # A parent folder may be closed.
            continue
        files = [path for path in entries if path.suffix.lower() in _LIST_SUFFIXES and path.stem not in stems]
        yield from sorted(filter(Path.is_file, files), key=lambda path: (not _is_named_list(path, folder), path))[
            :_LISTS_READ
        ]


def named_lists(folder: Path) -> Iterator[Path]:
    """Yields the files beside images, or beside their folder, that have the name of a list of times."""
    for place in (folder, folder.parent):
        with suppress(OSError):
            files = (path for path in place.iterdir() if path.suffix.lower() in _LIST_SUFFIXES)
            yield from (path for path in files if _is_named_list(path, folder) and path.is_file())


def _is_named_list(path: Path, folder: Path) -> bool:
    """Returns whether a file has the name of a list: `times.txt` of KITTI, `rgb.txt` of the folder rgb, `data.csv` of EuRoC."""
    stem, words = path.stem.lower(), _words(path.stem)
    other = words - _IMAGE_WORDS - _words(folder.name) - _words(folder.parent.name)
    return stem in (folder.name.lower(), "data") or bool(words & _TIME_WORDS and other <= _TIME_WORDS)


def _words(text: str) -> set[str]:
    return set(re.findall("[a-z]+", text.lower()))


def _listed(path: Path, images: Sequence[Path]) -> ImageTimes:
    """Reads a list of times. A file of another kind gives no times and no problem."""
    folder, is_named = images[0].parent, _is_named_list(path, images[0].parent)
    try:
        titles, rows = _table(path, _MAX_LIST_BYTES if is_named else _LINE_BYTES * (len(images) + 10))
    except OSError as error:
        return ImageTimes(problem=f"{path.name} cannot be read ({error.strerror})" if is_named else "")
    keys = [str(_image_key(image.name, folder)) for image in images]
    columns = [list(column) for column in zip(*rows, strict=False)]
    named = [{_image_key(each, folder): row for each, row in zip(column, rows, strict=True)} for column in columns]
    shares = [sum(key in rows_by_key for key in keys) for rows_by_key in named]
    has_names = [bool(column) and column[0].lower().endswith(IMAGE_SUFFIXES) for column in columns]
    place = max(range(len(columns)), key=lambda each: (shares[each], has_names[each], -each), default=0)
    if is_by_name := bool(columns) and shares[place] == len(keys):
        rows = [named[place][key] for key in keys]
        order = sorted(range(len(columns)), key=lambda each: (each == place, each > place, abs(each - place)))
    elif columns and has_names[place] and shares[place]:
        missing = next(image.name for image, key in zip(images, keys, strict=True) if key not in named[place])
        return ImageTimes(problem=f"{path.name} has no line for {printable(missing)}")
    elif not is_named:
        return ImageTimes()
    elif len(rows) != len(images):
        return ImageTimes(problem=f"{path.name} has {len(rows)} times for {len(images)} images")
    else:
        order, place = list(range(len(columns))), -1
    readings = [_column_times(path.name, [row[column] for row in rows], is_by_name=is_by_name) for column in order]
    # Sorting is stable: of several columns with dates, or with other times, the nearest one counts.
    best = min(readings, key=lambda reading: (not reading.times_ns, not reading.is_absolute))
    if best.times_ns and not best.is_absolute:
        number = order[readings.index(best)]
        title = titles[number] if len(titles) == len(columns) else " ".join(titles)
        is_own = is_by_name and path.stem.lower() == folder.name.lower()
        if (
            number == place
            or not is_named
            or not (is_own or _words(path.stem) & _TIME_WORDS or _TIME_TITLE.search(title))
        ):
            best = ImageTimes()  # Numbers of another kind, such as positions or classes.
        elif _FINE_UNIT.search(title):
            best = ImageTimes(problem=f"{path.name}: {printable(title)[:40]!r} is not in seconds")
    return best


def _table(path: Path, most_bytes: int) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and the rows of a list; both empty for a file above `most_bytes`."""
    with open_file(path) as file:
        data = file.read(most_bytes + 1)
    lines = data.decode("utf-8", "replace").split("\n") if len(data) <= most_bytes else []
    begin = next((number for number, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    rows = [_fields(line) for line in lines[begin:] if line.strip() and not line.startswith("#")]
    titles = _fields(lines[begin - 1].lstrip("# ")) if begin else []
    return (rows[0], rows[1:]) if rows and not re.search("[0-9]", "".join(rows[0])) else (titles, rows)


def _fields(line: str) -> list[str]:
    if _DATE.fullmatch(line.strip()):  # A date may have a comma before its fraction.
        return [line.strip()]
    text = _DATE_AND_TIME.sub(r"\1T\2", line.strip())
    return [field.strip(' "') for field in (_SEPARATOR.split(text) if _SEPARATOR.search(text) else text.split())]


def _image_key(text: str, folder: Path) -> str | None:
    """Returns a key that is the same for an image and its entry in a list; None if the entry names another folder."""
    *_, parent, name = ("", *text.replace("\\", "/").rsplit("/", 2))
    if parent not in ("", ".", folder.name):
        return None
    stem, _, suffix = name.rpartition(".")
    stem = stem if f".{suffix}".lower() in IMAGE_SUFFIXES else name
    return (stem.lstrip("0") or "0") if stem.isascii() and stem.isdecimal() else stem


def _column_times(name: str, column: Sequence[str], *, is_by_name: bool) -> ImageTimes:
    parsed_ns = [_time_of(text) for text in column]
    places = [f"{name}: {text[:40]!r}" for text in column]
    times_ns = [time_ns for time_ns in parsed_ns if time_ns is not None]
    if len(times_ns) < len(parsed_ns):
        return ImageTimes(problem=f"{printable(places[parsed_ns.index(None)])} is neither a date and time nor seconds")
    is_absolute = min(times_ns, default=0) >= _EARLIEST_NS
    if not (is_by_name and is_absolute) and sorted(times_ns) != times_ns:
        return ImageTimes(problem=f"the times in {name} do not increase")
    return _checked(times_ns, places)


def _time_of(line: str) -> int | None:
    """Returns the time of a line, in ns: a date and time (in UTC if it has no zone), a number since 1970, or seconds."""
    try:
        if match := _DATE.fullmatch(line):
            date, fraction, zone = match.groups(default="")
            return int(datetime.fromisoformat(date + (zone or "Z")).timestamp()) * 10**9 + int(
                fraction[:9].ljust(9, "0")
            )
        number = Decimal(line)
        possible_ns = [int(number * unit) for unit in _UNITS_NS if 0 <= number * unit < _LATEST_NS]
        is_relative = len(possible_ns) == len(_UNITS_NS) and max(possible_ns) < _EARLIEST_NS
        return possible_ns[0] if is_relative else next((each for each in possible_ns if each >= _EARLIEST_NS), None)
    except (ArithmeticError, ValueError):
        return None


def _checked(times_ns: Sequence[int | None], places: Sequence[str]) -> ImageTimes:
    """Returns the times if they are complete and plausible for a camera, else the problem. `places`: their names."""
    known = sorted((time_ns, place) for time_ns, place in zip(times_ns, places, strict=True) if time_ns is not None)
    if not known:
        return ImageTimes(problem=_NO_TIMES)
    if len(known) < len(times_ns):
        odd = printable(places[times_ns.index(None)])
        return ImageTimes(problem=f"{len(known)} of {len(times_ns)} images have a time, {odd} has none")
    periods_ns = [later - earlier for (earlier, _), (later, _) in pairwise(known)]
    if 0 in periods_ns:
        first = periods_ns.index(0)
        return ImageTimes(
            problem=f"{printable(known[first][1])} and {printable(known[first + 1][1])} have the same time"
        )
    if periods_ns and not _PERIODS_NS[0] <= median(periods_ns) <= _PERIODS_NS[1]:
        return ImageTimes(
            problem=f"the numbers, as in {printable(places[0])}, are too close or too far apart for times"
        )
    return ImageTimes(tuple(time_ns for time_ns in times_ns if time_ns is not None))
