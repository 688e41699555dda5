"""Reads the times of a camera's image files from their names, or from the list of times beside them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median

from shared.sanitize import printable

_UNITS_NS = (10**9, 10**6, 10**3, 1)  # Seconds, milliseconds, microseconds, nanoseconds.
# Later seconds could be dates such as 2301311259. Some recordings count from the epoch of GPS, 1980.
_EARLIEST_NS, _LATEST_NS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9 for year in (1980, 2038))
_PERIODS_NS = (100_000, 3600 * 10**9)  # Plausible times between images; closer numbers only count them.
_TIME = re.compile(
    # Ten digits that are a year, month, day and hour are not a number of seconds.
    r"(?<![0-9.])(?!(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3]))"
    r"(?:([0-9]{9,10})([._-])([0-9]{1,9})"  # Seconds and their fraction.
    r"|([0-9]{11,19}|[0-9]{9,10}(?![_-]?[0-9])))(?![0-9.])"
)
_EXTRACTED = re.compile(r"([0-9]{6}|[1-9][0-9]{6})_(0|[1-9][0-9]{0,18})")  # `skylane bag extract`: index and stamp.
_REPR_DIGITS = 7  # Decimals of a date in seconds as a `float`, written without trailing zeros.
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
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
    readings = [_checked([*_times_in(stems)], names), _checked(_extracted(stems), names)]
    plausible = {each for each in readings if each.times_ns}
    if len(plausible) > 1:
        return ImageTimes(problem=f"the number in {printable(names[0])} can be a time in two units")
    problems = [listed, *sorted(readings, key=lambda each: each.problem == _NO_TIMES)]
    return plausible.pop() if plausible else next(each for each in problems if each.problem)


def _times_in(stems: Sequence[str]) -> Iterator[int | None]:
    """Yields the one plausible time in each name, in ns; None if there is none, or more than one."""
    found = [_TIME.findall(stem) for stem in stems]
    numbers = [int(number) for times in found for *_, number in times if number]
    if {later - earlier for earlier, later in pairwise(numbers)} == {1}:  # They count the images.
        found = [[]] * len(stems)
    fractions = [(mark, digits) for times in found for _, mark, digits, _ in times if mark]
    widths = {len(digits) for _, digits in fractions}
    is_decimal = all(mark == "." for mark, _ in fractions)
    is_count = all(mark != "." for mark, _ in fractions) and 9 in widths  # noqa: PLR2004  Nanoseconds, padded or not.
    if is_decimal and len(widths) > 1:  # Without trailing zeros, as of a `float`; otherwise they may be unpadded.
        is_decimal = max(widths) <= _REPR_DIGITS and not any(digits[1:].endswith("0") for _, digits in fractions)
    is_certain = is_decimal or is_count or widths == {6}
    for times in found:
        plausible = []
        for seconds, _, digits, number in times:
            fraction_ns = int(digits or 0) if is_count else int(digits.ljust(9, "0"))
            read = [int(number) * unit for unit in _UNITS_NS] if number else [int(seconds) * 10**9 + fraction_ns]
            plausible += [each for each in read if _EARLIEST_NS <= each < _LATEST_NS and (number or is_certain)]
        yield plausible[0] if len(plausible) == 1 else None


def _extracted(stems: Sequence[str]) -> list[int | None]:
    """Returns the stamps in names that `skylane bag extract` writes; None for other names."""
    pairs = [(int(match[1]), int(match[2])) for stem in stems if (match := _EXTRACTED.fullmatch(stem))]
    do_increase = all(earlier < later for pair in pairwise(pairs) for earlier, later in zip(*pair, strict=True))
    if len(pairs) < len(stems) or not do_increase or pairs[-1][1] >= _LATEST_NS:
        return [None] * len(stems)
    return [stamp_ns for _, stamp_ns in pairs]


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
    read = [time_ns for time_ns in times_ns if time_ns is not None]
    if len(read) < count:
        return ImageTimes(problem=f"{printable(places[times_ns.index(None)])} is neither a date and time nor seconds")
    if sorted(read) != read:
        return ImageTimes(problem=f"the times in {path.name} do not increase")
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
