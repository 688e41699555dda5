"""A real Triton with a tiny model, run by the Python of its own environment: `python triton_child.py HTTP GRPC READY`.

It connects to port READY as soon as the model is ready.
"""

import socket
import sys
from importlib import import_module
from typing import Any

import numpy as np

decorators: Any = import_module("pytriton.decorators")  # Any: it is installed in another environment.
model_config: Any = import_module("pytriton.model_config")
pytriton: Any = import_module("pytriton.triton")

HEIGHT, WIDTH, CLASSES = 16, 24, 5
LARGEST_BATCH = 4


def infer(images: Any) -> dict[str, Any]:
    """Returns the sum of a pixel's channels modulo the number of classes; fails for a white image."""
    if (images == 255).all():
        raise ValueError("white images are refused")
    return {"mask": images.sum(axis=-1, dtype=np.int64) % CLASSES, "count": np.full((len(images), 1), len(images))}


def serve(http_port: int, grpc_port: int, ready_port: int) -> None:
    """Serves until the process ends; connects to `ready_port` when it is ready."""
    config = pytriton.TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        allow_metrics=False,
    )
    with pytriton.Triton(config=config) as triton:
        triton.bind(
            model_name="there",
            infer_func=decorators.batch(infer),
            inputs=[model_config.Tensor(name="images", dtype=np.uint8, shape=(HEIGHT, WIDTH, 3))],
            outputs=[
                model_config.Tensor(name="mask", dtype=np.int64, shape=(HEIGHT, WIDTH)),
                model_config.Tensor(name="count", dtype=np.int64, shape=(1,)),
            ],
            config=model_config.ModelConfig(batching=True, max_batch_size=LARGEST_BATCH),
        )
        triton.run()
        triton.connect()  # Returns when the model is ready.
        socket.create_connection(("127.0.0.1", ready_port)).close()
        triton.serve()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
