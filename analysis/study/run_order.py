"""The order of the runs of a study: randomized blocks.

A repetition is a block that contains every cell once. Within a block, the worker setups come in random order, each with
newly started workers, and the cells of a setup come in random order: a split-plot design (Fisher 1925; Montgomery, Design
and Analysis of Experiments, chapter 14). Drift during the study, such as rising temperature, then affects all cells
alike. Because repetitions never share a worker process, their spread includes the variation between process starts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from analysis.study.cell import StudyCell, WorkerSetup


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A cell and one of its repetitions; `order` is the position in the study, starting at 1."""

    order: int
    cell: StudyCell
    repetition: int


def ordered_groups(
    cells: Sequence[StudyCell], repetitions: int, seed: int
) -> list[tuple[WorkerSetup, list[PlannedRun]]]:
    """Returns all runs of a study in the random order determined by `seed`, grouped by the workers that they share."""
    groups = []
    positions = count(1)
    for repetition in range(1, repetitions + 1):
        generator = random.Random(f"{seed}/{repetition}")
        by_setup: dict[WorkerSetup, list[StudyCell]] = {}
        for cell in cells:
            by_setup.setdefault(cell.setup, []).append(cell)
        block = list(by_setup.items())
        generator.shuffle(block)
        for setup, members in block:
            generator.shuffle(members)
            groups.append((setup, [PlannedRun(next(positions), cell, repetition) for cell in members]))
    return groups


def run_seed(seed: int, cell: str, repetition: int) -> int:
    """Returns the seed of a run's random arrivals, jitter and losses."""
    return random.Random(f"{seed}/{cell}/{repetition}").randrange(1 << 31)
