"""Prints what lies ahead of the vehicle now: `python outputs.py SOURCE`, in the checkout, with a broker and a worker running.

Needs the models road-small at the worker and nothing on the vehicle; `present="fuse"` would also use a local model.
"""

import sys

import numpy as np

from edge.config import EdgeConfig
from edge.outputs import outputs

config = EdgeConfig(model="road-small", present="warp", sinks=())
for output in outputs(sys.argv[1], config):
    if output.result is None:
        print(f"frame {output.sequence}: no mask ({output.reason})")  # noqa: T201
        continue
    height, width = output.result.shape
    ahead = output.result[height // 2 :, width // 3 : 2 * width // 3]
    class_id = np.bincount(ahead.ravel()).argmax()
    age_ms = output.age_ns / 1e6
    print(f"frame {output.sequence}: class {class_id} is ahead ({output.origin}, {age_ms:.0f} ms old)")  # noqa: T201
