"""The order of the runs of a study: randomized blocks.

A repetition is a block that contains every cell once. Within a block, the worker setups come in random order, each with
newly started workers, and the cells of a setup come in random order: a split-plot design (Fisher 1925; Montgomery, Design
and Analysis of Experiments, chapter 14). Drift during the study, such as rising temperature, then affects all cells
alike. Because repetitions never share a worker process, their spread includes the variation between process starts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.study.plan.cell import StudyCell, WorkerSetup


@dataclass(frozen=True, slots=True)
class SetupGroup:
    """Cells of one setup that are run with the same worker processes, once each."""

    repetition: int  # Starts at 1.
    setup: WorkerSetup
    cells: tuple[StudyCell, ...]


def ordered_groups(cells: Sequence[StudyCell], repetitions: int, seed: int) -> tuple[SetupGroup, ...]:
    """Returns all runs of a study in the random order determined by `seed`."""
    ordered = []
    for repetition in range(1, repetitions + 1):
        generator = random.Random(f"{seed}/{repetition}")
        by_setup: dict[WorkerSetup, list[StudyCell]] = {}
        for cell in cells:
            by_setup.setdefault(cell.setup, []).append(cell)
        groups = list(by_setup.items())
        generator.shuffle(groups)
        for setup, members in groups:
            generator.shuffle(members)
            ordered.append(SetupGroup(repetition, setup, tuple(members)))
    return tuple(ordered)


def run_seed(seed: int, cell: str, repetition: int) -> int:
    """Returns the seed of a run's random arrivals, jitter and losses."""
    return random.Random(f"{seed}/{cell}/{repetition}").randrange(1 << 31)
