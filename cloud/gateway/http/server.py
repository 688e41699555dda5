"""The HTTP server of the gateway: all routes on one port, based on uvicorn and FastAPI."""

import asyncio
import ssl
import threading
from collections.abc import Mapping
from functools import partial

import uvicorn
from fastapi import FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from cloud.frontend import Frontend
from cloud.gateway.bind import BoundedListener, ListenError, listen
from cloud.gateway.http import detect, open_inference, skylane, tf_serving
from cloud.gateway.http.call import ERROR_RESPONSES, MASK_HEADER, TIMING_HEADER
from cloud.gateway.http.connection import KEEP_ALIVE_S, HttpConnection, HttpListener
from cloud.gateway.http.metrics import WorkerCollector
from cloud.gateway.http.middleware import CallMiddleware, HeaderChecks
from cloud.gateway.limits import MAX_HELD_MESSAGES, CallLimits
from cloud.node import CloudNode
from cloud.serving.errors import ApiError, ErrorCode

ROUTE_MODULES = (skylane, detect, open_inference, tf_serving)

_GRACE_S = 5
_CLIENT_DISCONNECTED = 499  # The status is never sent, but counted: unlike 500 it is not an error of the worker.
_ERROR_HEADERS = {
    ErrorCode.UNAUTHENTICATED: {"WWW-Authenticate": "Bearer"},
    ErrorCode.BUSY: {"Retry-After": "1"},
    ErrorCode.STOPPING: {"Retry-After": "1"},
}


class HttpServer(Frontend):
    """The HTTP server, which runs in its own thread."""

    def __init__(self, worker: CloudNode, address: str) -> None:
        """Binds the port; calls are processed from `start` on.

        Raises:
            ListenError: the address or the certificate cannot be used.
        """
        config = worker.config
        server_config = uvicorn.Config(
            CallMiddleware(
                HeaderChecks(create_app(worker), config.allowed_hosts, config.origins),
                CallLimits(config.max_calls, MAX_HELD_MESSAGES * config.max_message_bytes),
                on_error=partial(worker.replier.errors.record, "http"),
                count=lambda status: worker.call_counts.add(f"http {status}"),
            ),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # Malformed requests must not fill the log.
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=config.gateway_tls_cert,
            ssl_keyfile=config.gateway_tls_key,
        )
        try:
            server_config.load()
        except (OSError, ssl.SSLError) as error:
            raise ListenError(f"the certificate {config.gateway_tls_cert} cannot be used: {error}") from error
        self._socket = BoundedListener(listen("http", address), worker.connection_limits["http"])
        self.port: int = self._socket.getsockname()[1]
        self._server = HttpListener(server_config, worker)
        self._on_fault = worker.threads.fault
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to accept calls."""
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the port, and waits for active calls, up to a grace period."""
        self._server.should_exit = True
        if self._thread:
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve([self._socket]))
        except BaseException as error:  # noqa: BLE001  The worker stops without its server.
            self._on_fault(error)


def create_app(worker: CloudNode) -> FastAPI:
    """Creates the application with all routes."""
    app = FastAPIOffline(  # The page at /docs loads nothing from other servers.
        redoc_url=None,
        title="Skylane worker",
        version="1",
        responses=dict(ERROR_RESPONSES),
        # Each route checks the token itself; this lets the page at /docs ask for one.
        dependencies=[Security(HTTPBearer(auto_error=False))] if worker.authenticator.requires_token else [],
    )
    for module in ROUTE_MODULES:
        app.include_router(module.routes)
    app.state.worker, app.state.metrics = worker, WorkerCollector(worker)
    for error in (ApiError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(error, _on_error)
    if worker.config.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=worker.config.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[TIMING_HEADER, MASK_HEADER],
        )
    return app


def _on_error(_: Request, error: Exception) -> Response:
    """Creates the response to a call that raised an exception."""
    match error:
        case ApiError():
            return _error_response(error.code.http_status, str(error), _ERROR_HEADERS.get(error.code))
        case RequestValidationError():
            first = error.errors()[0]
            text = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
            return _error_response(ErrorCode.UNPROCESSABLE.http_status, text)
        case HTTPException():
            return _error_response(error.status_code, str(error.detail), error.headers)
        case ClientDisconnect():
            return Response(status_code=_CLIENT_DISCONNECTED)
    return _error_response(ErrorCode.FAILED.http_status, "internal error: the worker's log has the traceback")


def _error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
