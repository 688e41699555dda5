"""The order of the runs: blocks, and chance within them.

A repetition is a block: every cell once. Within a block the workers' setups come in random order, each with workers
newly started, and within a setup its cells come in random order: a split-plot design (Fisher 1925; Montgomery, Design
and Analysis of Experiments, chapter 14). What drifts while a study runs, such as a machine that grows warm, then meets
all cells alike; and as no two repetitions share a worker's process, they differ as starts of the system do.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.study.plan.cell import Cell, WorkerSetup


@dataclass(frozen=True, slots=True)
class Turn:
    """The runs that one start of the workers serves: cells of one setup, once each."""

    repetition: int  # From 1.
    setup: WorkerSetup
    cells: tuple[Cell, ...]


def turns(cells: Sequence[Cell], repetitions: int, seed: int) -> tuple[Turn, ...]:
    """All runs of a study in the order of a seed; the same seed gives the same order."""
    ordered = []
    for repetition in range(1, repetitions + 1):
        chance = random.Random(f"{seed}/{repetition}")
        by_setup: dict[WorkerSetup, list[Cell]] = {}
        for cell in cells:
            by_setup.setdefault(cell.setup, []).append(cell)
        groups = list(by_setup.items())
        chance.shuffle(groups)
        for setup, members in groups:
            chance.shuffle(members)
            ordered.append(Turn(repetition, setup, tuple(members)))
    return tuple(ordered)


def run_seed(seed: int, cell: str, repetition: int) -> int:
    """The seed of a run's own chances: arrivals, jitter and losses."""
    return random.Random(f"{seed}/{cell}/{repetition}").randrange(1 << 31)
