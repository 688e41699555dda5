"""Child process that runs one variant of `bench.engines.tensorflow_variants`: TensorFlow reads flags only when imported.

It prints the milliseconds of each warm-up image, one per line, and "ready", after it has written the masks of all images to
a file. Then it reads image numbers from its standard input, and prints "wall-ms processor-ms" for each.
"""

import sys
import time
from pathlib import Path

import numpy as np

from bench.engines.tensorflow_variants import VARIANTS, open_variant

_WARM_UP = 3


def main(name: str, models: str, model: str, images_file: str, masks_file: str) -> None:
    """Serves a variant over standard input and output; both files are NumPy arrays."""
    images = np.load(images_file)
    run = open_variant(VARIANTS[name], Path(models), model)
    for _ in range(_WARM_UP):
        begin_ns = time.perf_counter_ns()
        run(images[:1])
        print((time.perf_counter_ns() - begin_ns) / 1e6, flush=True)  # noqa: T201 - to the parent.
    np.save(masks_file, np.concatenate([run(images[number : number + 1]) for number in range(len(images))]))
    print("ready", flush=True)  # noqa: T201 - to the parent.
    for line in sys.stdin:
        number = int(line)
        used_s, begin_ns = time.process_time(), time.perf_counter_ns()
        run(images[number : number + 1])
        wall_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        print(wall_ms, 1e3 * (time.process_time() - used_s), flush=True)  # noqa: T201 - to the parent.


if __name__ == "__main__":
    main(*sys.argv[1:])
