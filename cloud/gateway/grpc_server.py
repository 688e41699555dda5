"""The gRPC server: every service of the gateway on one port.

A call's bytes are read by the thread that answers it, and its answer goes out from there: gRPC's own Python server hands
both to other threads, and each time a frame waits until they are awake.
"""

import threading
from collections.abc import Sequence
from functools import partial

from cloud.gateway import grpc_conversation
from cloud.gateway.grpc_native import NativeService
from cloud.gateway.grpc_service import Count, Service, Terms, UnknownCalls, handlers
from cloud.gateway.http2_server import Http2Server, most_threads
from cloud.gateway.http2_terms import Handler
from cloud.gateway.oip_grpc import OpenInferenceService
from cloud.gateway.places import Places
from cloud.gateway.tfs_grpc import ModelService, PredictionService
from cloud.gateway.worker_parts import WorkerParts
from shared.call_threads import CallThreads, OnFault


class GrpcServer:
    """Serves from `start` until `close`."""

    def __init__(self, parts: WorkerParts, on_fault: OnFault) -> None:
        settings = parts.settings
        self._stopping = threading.Event()
        most_streams = max(1, settings.max_calls // 4)
        self._threads = CallThreads("grpc", most_threads(settings), on_fault)
        terms = Terms(
            partial(parts.errors.record, "grpc"),
            _counter(parts),
            parts.callers,
            streams=Places(most_streams),
            conversations=grpc_conversation.Terms(self._threads, self._stopping, settings.silent_s),
        )
        services: Sequence[Service] = [
            NativeService(parts, self._stopping),
            PredictionService(parts),
            ModelService(parts),
            OpenInferenceService(parts),
        ]
        found: dict[str, Handler] = {}
        for service in services:
            found |= handlers(service, terms)
        self._server = Http2Server(settings, found, UnknownCalls(terms), self._threads)
        self.port = self._server.port

    def start(self) -> None:
        """Take calls from now on."""
        self._server.start()

    def close(self) -> None:
        """End streams, give calls under way a moment, and let go of the port."""
        self._stopping.set()
        self._server.close()
        self._threads.close()


def _counter(parts: WorkerParts) -> Count:
    def count(code: str) -> None:
        parts.calls.add(f"grpc {code}")

    return count
