"""Triton with PyTriton: HTTP and gRPC endpoints, and a Python backend that calls into this process."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

from bench.peers.function import INPUT, MASK_OUTPUT, MODEL, TOOK_OUTPUT, Function


def serve(http_port: int, grpc_port: int) -> None:
    """Serves until the process is ended."""
    function = Function()

    def infer(requests: Sequence[Any]) -> list[dict[str, Any]]:
        answers = (function.answer(request.data[INPUT]) for request in requests)
        return [{MASK_OUTPUT: mask, TOOK_OUTPUT: np.array([took_ns])} for mask, took_ns in answers]

    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=http_port,
        grpc_address="127.0.0.1",
        grpc_port=grpc_port,
        allow_metrics=False,
    )
    open_to_all = TritonSecurityConfig(restricted_endpoints=[])  # This includes system shared memory.
    with Triton(config=config, security_config=open_to_all) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=infer,
            inputs=[Tensor(name=INPUT, dtype=np.uint8, shape=(-1,))],
            outputs=[
                Tensor(name=MASK_OUTPUT, dtype=np.uint8, shape=(-1, -1)),
                Tensor(name=TOOK_OUTPUT, dtype=np.int64, shape=(1,)),
            ],
            config=ModelConfig(batching=False),
        )
        triton.serve()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
