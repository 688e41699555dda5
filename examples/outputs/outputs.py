"""Prints what lies ahead of the vehicle now: `python outputs.py SOURCE [BROKER]`."""

import sys

import numpy as np

import skylane

source, broker = sys.argv[1], (*sys.argv[2:], "mqtt://127.0.0.1")[0]
for output in skylane.play(source, broker=broker, model="road-small", present="warp"):
    if output.result is None:
        print(f"frame {output.sequence}: no mask ({output.reason})")
        continue
    height, width = output.result.shape
    ahead = output.result[height // 2 :, width // 3 : 2 * width // 3]
    class_id = np.bincount(ahead.ravel()).argmax()
    print(f"frame {output.sequence}: class {class_id} is ahead ({output.origin}, {output.age_ns / 1e6:.0f} ms old)")
