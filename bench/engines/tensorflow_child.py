"""A process that runs one way of `bench.engines.tensorflow_variants` when it is told to: TensorFlow reads flags once, at its import.

It is told the number of a picture a line, and answers "wall-ms processor-ms". Before that it says the milliseconds of
each picture that warms it up, a line each, and "ready", with the masks of all pictures in a file.
"""

import sys
import time
from pathlib import Path

import numpy as np

from bench.engines.tensorflow_variants import WAYS, opened

_WARM_UP = 3


def main(name: str, models: str, model: str, pictures: str, masks: str) -> None:
    """Serve the way `name` over stdin and stdout; `pictures` and `masks` are files of NumPy's."""
    shown = np.load(pictures)
    run = opened(WAYS[name], Path(models), model)
    for _ in range(_WARM_UP):
        begun_ns = time.perf_counter_ns()
        run(shown[:1])
        print((time.perf_counter_ns() - begun_ns) / 1e6, flush=True)  # noqa: T201 - to the parent.
    np.save(masks, np.concatenate([run(shown[number : number + 1]) for number in range(len(shown))]))
    print("ready", flush=True)  # noqa: T201 - to the parent.
    for line in sys.stdin:
        number = int(line)
        spent_s, begun_ns = time.process_time(), time.perf_counter_ns()
        run(shown[number : number + 1])
        took_ms = (time.perf_counter_ns() - begun_ns) / 1e6
        print(took_ms, 1e3 * (time.process_time() - spent_s), flush=True)  # noqa: T201 - to the parent.


if __name__ == "__main__":
    main(*sys.argv[1:])
