"""A process that calls the model of a batch directly with prepared frames, and nothing else."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

from cloud.models.opening import open_model
from ops.batch.frames import PreparedFrame
from ops.batch.library import scan
from ops.batch.settings import BatchSettings
from ops.batch.steps import decode_bag
from ops.processes.child import Child, serve
from shared.runtime import memory

_IMAGES = 8


class BareEngines:
    """Processes that infer at the same time; a context manager ends them."""

    def __init__(self, settings: BatchSettings, processes: int, stack: ExitStack) -> None:
        """Starts the processes, which end with `stack`."""
        values = {"settings": settings.model_dump_json(exclude_unset=True)}
        self._children = [stack.enter_context(Child(__name__, values)) for _ in range(processes)]
        for child in self._children:
            child.wait()

    def measure_hz(self, frames: int) -> float:
        """Returns the frames per second of all processes together, each of which infers `frames` frames."""
        with ThreadPoolExecutor(len(self._children)) as threads:
            seconds = list(threads.map(lambda child: child.ask(frames), self._children))
        return sum(frames / float(each) for each in seconds)

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self._children)


def start(settings: str) -> Callable[[Any], float]:
    """Loads the model and prepares some frames; returns the function that infers a number of them and times it."""
    memory.retain()
    parsed = BatchSettings.model_validate_json(settings)
    model = open_model(parsed.stored_model(), parsed.chosen_engine(), parsed.placement(), max_batch=1)
    model.warm_up()
    images = _images(parsed)

    def infer(frames: int) -> float:
        begin_s = time.perf_counter()
        for number in range(frames):
            model.predict(images[number % len(images)])
        return time.perf_counter() - begin_s

    return infer


def _images(settings: BatchSettings) -> Sequence[Any]:
    bag = scan(settings.library, Path(settings.out)).bags[0]
    with closing(decode_bag(bag, settings)) as items:
        return [item.image[None] for item in islice(items, _IMAGES) if isinstance(item, PreparedFrame)]


if __name__ == "__main__":
    serve(start)
