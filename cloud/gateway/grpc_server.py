"""The gRPC server: every service of the gateway on one port."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import grpc

from cloud.gateway import grpc_conversation
from cloud.gateway.grpc_native import NativeService
from cloud.gateway.grpc_service import Count, OnFault, Service, Terms, handlers
from cloud.gateway.listening import ListenError
from cloud.gateway.oip_grpc import OpenInferenceService
from cloud.gateway.places import Places
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.tfs_grpc import ModelService, PredictionService
from cloud.gateway.worker_parts import WorkerParts
from shared import clock
from shared.call_threads import CallThreads

_GRACE_S = 5.0
_LOOK_S = 1.0  # How often it is looked for messages that do not come, and answers that are not taken.
_HANDSHAKE_MS = 10_000  # Within which a connection must have begun to speak.
_MAX_METADATA_BYTES = 1 << 16
_LARGEST_FRAME = (1 << 24) - 1  # HTTP/2's own bound; a picture in one frame takes 3 % less time than in a hundred.


class GrpcServer:
    """Serves from `start` until `close`. A call has a thread of its own, of a bounded number."""

    def __init__(self, parts: WorkerParts, on_fault: OnFault) -> None:
        settings = parts.settings
        self._threads = CallThreads("grpc", settings.max_calls, on_fault)
        self._server = grpc.server(
            cast(ThreadPoolExecutor, self._threads),  # Of which it calls `submit` alone.
            options=[
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.max_send_message_length", settings.max_message_bytes),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
                ("grpc.so_reuseport", 0),
                ("grpc.http2.max_frame_size", _LARGEST_FRAME),
            ],
            maximum_concurrent_rpcs=settings.max_calls,
        )
        self._stopping = threading.Event()
        services: Sequence[Service] = [
            NativeService(parts, self._stopping),
            PredictionService(parts),
            ModelService(parts),
            OpenInferenceService(parts),
        ]
        self._awaited = Places(max(1, settings.max_calls // 2))
        self._untaken = Places(settings.max_calls)
        most_streams = max(1, settings.max_calls // 4)
        self._readers = ThreadPoolExecutor(most_streams, "grpc reader")
        terms = Terms(
            on_fault,
            _counter(parts),
            parts.callers,
            self._awaited,
            self._untaken,
            streams=Places(most_streams),
            conversations=grpc_conversation.Terms(self._readers, self._stopping, settings.silent_s),
        )
        self._server.add_generic_rpc_handlers(tuple(handlers(service, terms) for service in services))
        self._address = settings.grpc or ""
        self._body_s, self._answer_s = settings.body_s, settings.answer_s
        self._thread = threading.Thread(target=self._look, name="grpc look", daemon=True)
        self.port = self._bound(settings)

    def start(self) -> None:
        """Take calls from now on."""
        self._server.start()
        self._thread.start()

    def close(self) -> None:
        """End streams, give calls under way a moment, and let go of the port."""
        self._stopping.set()
        self._server.stop(_GRACE_S).wait()
        self._threads.close()
        self._readers.shutdown()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        """End calls whose message does not come, or whose answer is not taken; the body of a thread."""
        while not self._stopping.wait(min(_LOOK_S, self._body_s, self._answer_s)):
            self._untaken.end_those_before(clock.now_ns() - round(self._answer_s * 1e9))
            self._awaited.end_those_before(clock.now_ns() - round(self._body_s * 1e9))

    def _bound(self, settings: GatewaySettings) -> int:
        try:
            if settings.tls_cert and settings.tls_key:
                pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
                return self._server.add_secure_port(self._address, grpc.ssl_server_credentials([pair]))
            return self._server.add_insecure_port(self._address)
        except (RuntimeError, OSError) as error:
            raise ListenError(f"gRPC cannot listen at {self._address}: {error}") from error


def _counter(parts: WorkerParts) -> Count:
    def count(code: str) -> None:
        parts.calls.add(f"grpc {code}")

    return count
