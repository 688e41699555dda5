"""Pairs the classes of a network with the true classes: by name, and by a map file where the names differ.

A map file has lines of the form `network class: truth class`. Maps of known pairs of label sets ship in `configs/maps`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.evaluation.bag_images import EvaluationError
from modelling.evaluation.metrics import UNLABELLED
from shared.config import load_mapping
from shared.errors import suggestion
from shared.imaging.geometry import UNSEEN
from shared.imaging.labels import label_sets, read_labels
from shared.package_data import shipped
from shared.sanitize import printable

_Mask = npt.NDArray[np.uint8]
_Table = npt.NDArray[np.uint8]

_SHOWN = 12  # Names in a sentence.


class NoCounterpartError(EvaluationError):
    """No class of the network is one of the truth."""


@dataclass(frozen=True)
class ClassMap:
    """The classes that are compared: those of the truth that a class of the network corresponds to.

    A pixel whose true class has no counterpart is not scored. A predicted class without a counterpart is wrong wherever it
    is predicted, and counts as the class `none`.
    """

    network: tuple[str, ...]  # All classes of the network, by class id.
    truth: tuple[str, ...]  # All classes of the truth, by class id.
    counterparts: Mapping[str, str]  # The class of the truth of each class of the network that has one.

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The compared classes in the order of the truth; then `none`, if the network has classes without a counterpart."""
        return (*self.compared, UNLABELLED) if self.unmatched else self.compared

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """The classes of the truth that have a counterpart."""
        return tuple(dict.fromkeys(name for name in self.truth if name in self.counterparts.values()))

    @property
    def ignored(self) -> tuple[str, ...]:
        """The classes of the truth without a counterpart."""
        return tuple(name for name in self.truth if name and name not in self.compared)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The classes of the network without a counterpart."""
        return tuple(name for name in self.network if name not in self.counterparts)

    @property
    def is_identity(self) -> bool:
        """True if both have the same classes with the same ids."""
        pairs = self.counterparts.items()
        return self.network == self.truth and not self.unmatched and all(name == other for name, other in pairs)

    def of_truth(self, mask: _Mask) -> _Mask:
        """Returns true class ids as compared ids; `UNSEEN` for pixels that are not scored."""
        return self._truth_ids[mask]

    def of_network(self, mask: _Mask) -> _Mask:
        """Returns predicted class ids as compared ids; `UNSEEN` stays."""
        return self._network_ids[mask]

    def describe(self, ignored_share: float | None = None) -> str:
        """Returns a sentence about what was compared; empty if both have the same classes.

        `ignored_share`: the share of the labelled pixels whose class has no counterpart or no name, 0 to 1.
        """
        if self.is_identity:
            return ""
        parts = [f"compared: {_listed(self.compared)}"]
        share = f" ({100 * ignored_share:.1f} % of the labelled pixels)" if ignored_share else ""
        if self.ignored:
            parts.append(f"not scored, as the network has no such class: {_listed(self.ignored)}{share}")
        elif share:
            parts.append(f"not scored: labels whose ids have no name{share}")
        if self.unmatched:
            parts.append(f"wrong wherever predicted, as the truth has no such class: {_listed(self.unmatched)}")
        return f"Classes {'; '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """Returns what was compared as the key `classes` of a JSON object; empty if both have the same classes."""
        lists = {"compared": self.compared, "ignored": self.ignored, "always_wrong": self.unmatched}
        return {} if self.is_identity else {"classes": {key: list(names) for key, names in lists.items()}}

    @cached_property
    def _truth_ids(self) -> _Table:
        table = np.full(256, UNSEEN, np.uint8)
        for class_id, name in enumerate(self.truth):
            if name in self.compared:  # Not the class `none` of the truth, if the network has no such class.
                table[class_id] = self.compared.index(name)
        return table

    @cached_property
    def _network_ids(self) -> _Table:
        table = np.full(256, UNSEEN, np.uint8)
        for class_id, name in enumerate(self.network):
            # The truth may have a class `none` too, which no class without a counterpart may pass for.
            other = self.counterparts.get(name)
            table[class_id] = len(self.names) - 1 if other is None else self.compared.index(other)
        return table


class TrueMasks:
    """Converts true labels to the compared classes, and counts their pixels."""

    def __init__(self, classes: ClassMap) -> None:
        self.classes = classes
        self.pixels = 0
        self.labelled = 0  # Pixels with a true class.
        self.ignored = 0  # Labelled pixels whose class is not compared.
        self.highest_ignored = 0  # The highest class id of ignored pixels.

    @property
    def foreign(self) -> int:
        """The pixels without a class, or whose class is not compared."""
        return self.pixels - self.labelled + self.ignored

    def compared(self, labels: npt.NDArray[Any]) -> _Mask:
        """Returns the compared class of each pixel; `UNSEEN` for pixels that are not scored."""
        labels = labels.astype(np.uint8, copy=False)
        true = self.classes.of_truth(labels)
        is_labelled = labels != UNSEEN
        ignored = is_labelled & (true >= len(self.classes.names))
        self.pixels += labels.size
        self.labelled += int(np.count_nonzero(is_labelled))
        if ignored.any():
            self.ignored += int(np.count_nonzero(ignored))
            self.highest_ignored = max(self.highest_ignored, int(labels[ignored].max()))
        return true

    def describe(self) -> str:
        """Returns a sentence about what was compared; empty if both have the same classes."""
        return self.classes.describe(self.ignored / max(1, self.labelled))


def class_map(network: Sequence[str], truth: Sequence[str] | None, file: Path | None = None) -> ClassMap:
    """Returns the map between the classes of a network and those of the truth.

    Args:
        network: The names of the network's classes, by class id.
        truth: Those of the truth, "" for ids without a class; None if the truth has the class ids of the network.
        file: A map file, for the classes whose names do not settle it. None: the shipped one of these label sets, if any.

    Raises:
        EvaluationError: the file names unknown classes, or no class has a counterpart.
        ConfigError: the file cannot be read.
    """
    known = tuple(network if truth is None else truth)
    by_name = {_plain(name): name for name in known if name}
    counterparts = {name: by_name[_plain(name)] for name in network if _plain(name) in by_name}
    if truth is None:  # Two names may differ only in their spelling.
        counterparts = {name: name for name in network}
    if file is None:
        file = None if truth is None else _shipped_map(tuple(network), known)
    if file is not None:
        pairs = load_mapping(file)
        if not pairs:
            raise EvaluationError(f"map file {file} is empty: write lines of the form `network class: truth class`")
        for own, other in pairs.items():
            counterparts.pop(_named(file, own, network, "network"), None)
            if other is not None:  # A class with an empty value has no counterpart.
                counterparts[own] = _named(file, other, known, "truth")
    if not counterparts:
        raise NoCounterpartError(
            f"no class of the network ({_listed(network)}) is one of the truth ({_listed([name for name in known if name])}): "
            "give the pairs with --map FILE, in lines of the form `network class: truth class`"
        )
    return ClassMap(tuple(network), known, counterparts)


def _named(file: Path, name: object, known: Sequence[str], whose: str) -> str:
    if name not in known:
        raise EvaluationError(
            f"map file {file}: the {whose} has no class {printable(str(name)[:64])!r}{suggestion(str(name), filter(None, known))}"
        )
    return str(name)


def _shipped_map(network: tuple[str, ...], truth: tuple[str, ...]) -> Path | None:
    sets = {name: read_labels(path).names for name, path in label_sets().items()}
    for path in sorted((shipped("configs") / "maps").glob("*-to-*.yaml")):
        own, _, other = path.stem.partition("-to-")
        if (sets.get(own), sets.get(other)) == (network, truth):
            return path
    return None


def _plain(name: str) -> str:
    """Returns a name in the form in which names are compared."""
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
