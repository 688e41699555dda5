"""Reads the times of a camera's image files from their names, or from the list of times beside them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from statistics import median

from shared.sanitize import printable

_UNITS_NS = (10**9, 10**6, 10**3, 1)  # Seconds, milliseconds, microseconds, nanoseconds.
# Later seconds could be dates such as 2301311259. Some recordings count from the epoch of GPS, 1980.
_EARLIEST_NS, _LATEST_NS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9 for year in (1980, 2038))
_PERIODS_NS = (100_000, 3600 * 10**9)  # Plausible times between images; closer numbers only count them.
_TIME = re.compile(
    r"(?<![0-9.])(?:([0-9]{9,10})(?:\.([0-9]{1,9})|[_-]([0-9]{9}|[0-9]{6}))"  # Seconds and their fraction.
    r"|([0-9]{11,19}|[0-9]{9,10}(?![_-]?[0-9])))(?![0-9.])"
)
_EXTRACTED = re.compile(r"([0-9]{6,18})_(0|[1-9][0-9]{0,18})")  # `skylane bag extract`: index and stamp.
_LISTS = ("timestamps.txt", "times.txt")  # KITTI: a date and time a line, or seconds.
_MAX_LIST_BYTES = 1 << 26
_NO_TIMES = "the names hold no times, and there is no list of times"


@dataclass(frozen=True, slots=True)
class ImageTimes:
    """The times of a camera's images, or why there are none."""

    times_ns: tuple[int, ...] = ()  # All different, one an image; empty if they are unknown.
    problem: str = ""

    @property
    def is_absolute(self) -> bool:
        """Whether the times are dates, not times since the start of the recording."""
        return max(self.times_ns, default=0) >= _EARLIEST_NS


def read_times(images: Sequence[Path]) -> ImageTimes:
    """Reads the times of the image files of a camera, which are in order.

    A list of times counts if it has one for each image; otherwise the names count if each has exactly one time between 1980
    and 2038, or is one that `skylane bag extract` writes.
    """
    folder = images[0].parent
    listed = ImageTimes()
    # The list is beside the images, or beside their folder.
    for path in (parent / name for parent in (folder, folder.parent) for name in _LISTS):
        if path.is_file():
            listed = _listed(path, len(images))
            break
    if listed.times_ns:
        return listed
    names, stems = [path.name for path in images], [path.stem for path in images]
    stamps = [int(match[2]) if (match := _EXTRACTED.fullmatch(stem)) else _LATEST_NS for stem in stems]
    extracted = [stamp_ns if stamp_ns < _LATEST_NS else None for stamp_ns in stamps]
    readings = [_checked([_time_in(stem) for stem in stems], names), _checked(extracted, names)]
    plausible = {each for each in readings if each.times_ns}
    if len(plausible) > 1:
        return ImageTimes(problem=f"the number in {printable(names[0])} can be a time in two units")
    problems = [listed, *sorted(readings, key=lambda each: each.problem == _NO_TIMES)]
    return plausible.pop() if plausible else next(each for each in problems if each.problem)


def _time_in(stem: str) -> int | None:
    """Returns the one plausible time in a name, in ns; None if there is none, or more than one."""
    found = []
    for seconds, decimals, digits, number in _TIME.findall(stem):
        fraction_ns = int((decimals or digits).ljust(9, "0"))
        times = [int(number) * unit for unit in _UNITS_NS] if number else [int(seconds) * 10**9 + fraction_ns]
        found += [time_ns for time_ns in times if _EARLIEST_NS <= time_ns < _LATEST_NS]
    return found[0] if len(found) == 1 else None


def _listed(path: Path, count: int) -> ImageTimes:
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_LIST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError as error:
        return ImageTimes(problem=f"{path.name} cannot be read ({error.strerror})")
    filled = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(filled) != count:
        return ImageTimes(problem=f"{path.name} has {len(filled)} times for {count} images")
    times_ns = [_time_of(line) for line in filled]
    places = [f"{path.name}: {line[:40]!r}" for line in filled]
    in_order = [time_ns for time_ns in times_ns if time_ns is not None]
    if sorted(in_order) != in_order:
        return ImageTimes(problem=f"the times in {path.name} do not increase")
    return _checked(times_ns, places)


def _time_of(line: str) -> int | None:
    """Returns the time of a line, in ns: a date and time in UTC, or seconds."""
    date, _, fraction = line.partition(".")
    try:
        if ":" not in line:
            seconds = Decimal(line)
            return int(seconds * 10**9) if 0 <= seconds < _LATEST_NS // 10**9 else None
        whole = datetime.strptime(date, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return int(whole.timestamp()) * 10**9 + int(fraction[:9].ljust(9, "0"))
    except (InvalidOperation, ValueError):
        return None


def _checked(times_ns: Sequence[int | None], places: Sequence[str]) -> ImageTimes:
    """Returns the times if they are complete and can be those of a camera; `places` names each for the problem."""
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
