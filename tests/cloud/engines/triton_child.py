"""A real Triton with a tiny model, run by the Python of its own environment: `python triton_child.py HTTP GRPC`."""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

HEIGHT, WIDTH, CLASSES = 16, 24, 5
LARGEST_BATCH = 4


@batch
def infer(images: np.ndarray) -> dict[str, np.ndarray]:
    """The class of a pixel is its colours' sum, modulo the classes; a picture that is all 255 fails."""
    if (images == 255).all():
        raise ValueError("white is not for me")
    return {"mask": images.sum(axis=-1, dtype=np.int64) % CLASSES, "count": np.full((len(images), 1), len(images))}


def serve(http_port: int, grpc_port: int) -> None:
    """Serve until the process is ended."""
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="there",
            infer_func=infer,
            inputs=[Tensor(name="images", dtype=np.uint8, shape=(HEIGHT, WIDTH, 3))],
            outputs=[
                Tensor(name="mask", dtype=np.int64, shape=(HEIGHT, WIDTH)),
                Tensor(name="count", dtype=np.int64, shape=(1,)),
            ],
            config=ModelConfig(batching=True, max_batch_size=LARGEST_BATCH),
        )
        triton.serve()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
