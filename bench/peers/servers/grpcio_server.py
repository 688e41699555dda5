"""The floor: the function behind a plain grpcio server, without the features of a serving system.

It has no queue, no batches, no checks, no limits and no stamps.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from bench.peers.function import FLOOR_METHOD, GRPC_OPTIONS, TOOK_BYTES, Function

_THREADS = 8


def main(port: str) -> None:
    """Serves at 127.0.0.1 until the process ends."""
    function = Function()

    def answer(data: bytes, _: grpc.ServicerContext) -> bytes:
        mask, took_ns = function.answer(data)
        return b"".join((took_ns.to_bytes(TOOK_BYTES, "little"), mask.data))

    _, service, name = FLOOR_METHOD.split("/")
    methods: Any = {name: grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[2])
