"""Plans a batch: which bags of a library are finished, moved, copies of another one, or to be done."""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ops.batch.library import LibraryBag, content_hash, ends_hash
from ops.batch.output.results import TABLE_NAME, BagManifest, manifests, outputs_sha256, read_manifest, results_folder
from shared.errors import SkylaneError
from shared.files import make_folder


@dataclass(slots=True)
class BatchPlan:
    """The bags of a library before any is done: each is finished, pending, or a copy of one of these."""

    finished: list[LibraryBag] = field(default_factory=list)
    pending: list[LibraryBag] = field(default_factory=list)
    copies: dict[str, str] = field(default_factory=dict)  # Names of copies, each with the name of the bag that counts.
    redone: dict[str, str] = field(default_factory=dict)  # Reasons by name: pending bags that have results.
    moved: dict[str, str] = field(default_factory=dict)  # Names of finished bags, each with its earlier name.
    stale: list[str] = field(default_factory=list)  # Bags that have results, but are no longer in the library.
    hashes: dict[LibraryBag, str] = field(default_factory=dict)  # Content hashes, as far as they are known.


def plan(
    bags: Sequence[LibraryBag],
    out: Path,
    identity: Mapping[str, Any],
    known: Mapping[LibraryBag, str] = MappingProxyType({}),
    *,
    verify: bool = False,
) -> BatchPlan:
    """Compares a library with the results in `out`; moves the results of bags that were moved.

    A finished bag is recognized by its name, size and time of change, and is not read, unless `verify` is set: then its
    content and its results are compared with the hashes in its manifest. Another bag is read in advance only if it has
    the size, the first and the last bytes of another one, so that it may be a copy, or that bag at another place.

    Args:
        bags: The bags of the library.
        out: The folder of the batch.
        identity: See BatchSettings.identity.
        known: Content hashes of bags that an earlier run has read.
        verify: Whether to read finished bags and their results.
    """
    planner = _Planner(out, dict(identity), {} if verify else dict(known), verify=verify)
    for bag in bags:
        planner.compare(bag)
    planner.find_moved({bag.name for bag in bags})
    planner.find_copies()
    return planner.plan


class _Planner:
    """The state of planning; the methods are called once each, in this order, `compare` for every bag."""

    def __init__(self, out: Path, identity: dict[str, Any], hashes: dict[LibraryBag, str], *, verify: bool) -> None:
        self.plan = BatchPlan(hashes=hashes)
        self._out = out
        self._identity = identity
        self._verify = verify

    def compare(self, bag: LibraryBag) -> None:
        """Decides whether a bag has results, and whether they are still valid."""
        folder = results_folder(self._out, bag.name)
        manifest = read_manifest(folder)
        if manifest is None:
            self.plan.pending.append(bag)
            return
        reason = self._difference(bag, manifest, folder)
        if reason:
            self.plan.pending.append(bag)
            self.plan.redone[bag.name] = reason
        else:
            self.plan.finished.append(bag)
            self.plan.hashes[bag] = manifest.sha256

    def find_moved(self, names: set[str]) -> None:
        """Moves the results of bags that are no longer at their place to pending bags with the same content."""
        root = results_folder(self._out, "")
        by_size: dict[int, list[tuple[Path, BagManifest]]] = defaultdict(list)
        for folder, manifest in manifests(root):
            place = folder.relative_to(root).as_posix()
            if place not in names:
                by_size[manifest.size_bytes].append((folder, manifest))
        for bag in [bag for bag in self.plan.pending if bag.size_bytes in by_size]:
            sha256 = self._hash(bag)
            for item in by_size[bag.size_bytes]:
                folder, manifest = item
                if (manifest.sha256, manifest.identity) == (sha256, self._identity):
                    by_size[bag.size_bytes].remove(item)
                    self._move(bag, folder, manifest)
                    break
        self.plan.stale = sorted(manifest.bag for items in by_size.values() for _, manifest in items)

    def find_copies(self) -> None:
        """Removes pending bags with the content of another bag that is finished, or comes first by name."""
        pending = set(self.plan.pending)
        for bags in _similar((*self.plan.finished, *self.plan.pending)):
            first: dict[str, str] = {}
            for bag in bags if pending.intersection(bags) else ():
                sha256 = self._hash(bag)
                if sha256 and first.setdefault(sha256, bag.name) != bag.name and bag in pending:
                    self.plan.pending.remove(bag)
                    self.plan.copies[bag.name] = first[sha256]

    def _difference(self, bag: LibraryBag, manifest: BagManifest, folder: Path) -> str:
        """Returns why a run now would give a bag other results; empty if they are still valid."""
        changed = [key for key, value in self._identity.items() if manifest.identity.get(key) != value]
        if changed:
            key = changed[0]
            more = f", and {len(changed) - 1} more" if changed[1:] else ""
            return f"{key} was {manifest.identity.get(key)!s:.40}, is {self._identity[key]!s:.40}{more}"
        if not manifest.matches(bag):
            return "the bag has changed"
        if not (folder / TABLE_NAME).is_file():
            return "its table is missing"
        if self._verify:
            if outputs_sha256(folder) != manifest.outputs_sha256:
                return "its results were changed"
            if self._hash(bag) != manifest.sha256:
                return "the content of the bag has changed"
        return ""

    def _hash(self, bag: LibraryBag) -> str:
        """Returns the hash of a bag; empty if it cannot be read, which its processing reports."""
        if bag not in self.plan.hashes:
            try:
                self.plan.hashes[bag] = content_hash(bag.path)
            except (SkylaneError, OSError):
                return ""
        return self.plan.hashes[bag]

    def _move(self, bag: LibraryBag, folder: Path, manifest: BagManifest) -> None:
        place = results_folder(self._out, bag.name)
        if place.exists():
            shutil.rmtree(place)
        make_folder(place.parent, self._out)
        state = {"bag": bag.name, "size_bytes": bag.size_bytes, "mtime_ns": bag.mtime_ns}
        manifest.model_copy(update=state).write(folder)
        folder.replace(place)
        self.plan.pending.remove(bag)
        self.plan.finished.append(bag)
        self.plan.moved[bag.name] = manifest.bag


def _similar(bags: Iterable[LibraryBag]) -> Iterator[list[LibraryBag]]:
    """Yields the groups of bags that may have the same content."""
    by_size: dict[int, list[LibraryBag]] = defaultdict(list)
    for bag in bags:
        by_size[bag.size_bytes].append(bag)
    for group in by_size.values():
        by_ends: dict[str, list[LibraryBag]] = defaultdict(list)
        for bag in group if len(group) > 1 else ():
            by_ends[ends_hash(bag.path)].append(bag)
        yield from (similar for similar in by_ends.values() if len(similar) > 1)
