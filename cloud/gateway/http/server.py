"""The HTTP server: every route of the gateway on one port."""

import asyncio
import ssl
import threading
from collections.abc import Callable
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

from cloud.gateway.bind import ListenError, listen
from cloud.gateway.common.concurrency_limit import Capacity
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from cloud.gateway.detect import route
from cloud.gateway.http import health, metrics, skylane_routes
from cloud.gateway.http.call import ERRORS, MASK_HEADER, TIMING_HEADER
from cloud.gateway.http.connection import KEEP_ALIVE_S, Connection, Listener
from cloud.gateway.http.host_check import Hosts
from cloud.gateway.http.middleware import Guard
from cloud.gateway.http.origin_check import Origins
from cloud.gateway.open_inference import rest_routes as oip_rest
from cloud.gateway.tf_serving import rest_routes as tfs_rest

FACES = (health, metrics, skylane_routes, route, oip_rest, tfs_rest)  # Modules with a `router(parts)`.

_GRACE_S = 5
MAX_HELD_MESSAGES = 4  # Times the largest message: what the calls under way may hold together.
_CONNECTIONS = 2  # Times the calls that are answered: some are read meanwhile, and some idle.
_GONE = 499  # Nobody reads it; it is counted, and is no fault of the worker's as a 500 would be.
_BESIDE = {
    Kind.UNAUTHENTICATED: {"WWW-Authenticate": "Bearer"},
    Kind.BUSY: {"Retry-After": "1"},
    Kind.STOPPING: {"Retry-After": "1"},
}


class HttpServer:
    """Serves from `start` until `close`, in a thread of its own."""

    def __init__(self, parts: WorkerContext, on_fault: Callable[[BaseException], None]) -> None:
        """Binds the port; calls are answered from `start` on. `on_fault` receives what ends the server itself.

        Raises:
            ListenError: the address or the certificate cannot be used.
        """
        settings = parts.settings
        capacity = Capacity(settings.max_calls, MAX_HELD_MESSAGES * settings.max_message_bytes)
        app = Hosts(Origins(application(parts), settings.origins), settings.allowed_hosts)
        config = uvicorn.Config(
            Guard(
                app, capacity, partial(parts.errors.record, "http"), lambda status: parts.calls.add(f"http {status}")
            ),
            http=Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="critical",  # A stranger's broken requests must not fill the log.
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ListenError(f"the certificate {settings.tls_cert} cannot be used: {error}") from error
        self._socket = listen("http", settings.http or "")
        self.port: int = self._socket.getsockname()[1]
        self._server = Listener(
            config,
            most=_CONNECTIONS * settings.max_calls,
            header_timeout_s=settings.header_timeout_s,
            answer_s=settings.answer_s,
        )
        self._on_fault = on_fault
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take calls from now on."""
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give calls under way a moment, and let go of the port."""
        self._server.should_exit = True
        if self._thread:
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve([self._socket]))
        except BaseException as error:  # noqa: BLE001  Without its server the worker stops.
            self._on_fault(error)


def application(parts: WorkerContext) -> FastAPI:
    """All faces as one application."""
    app = FastAPIOffline(  # Its page at /docs needs no other server than this one.
        redoc_url=None,
        title="Skylane worker",
        version="1",
        responses=dict(ERRORS),
        # Each face asks the callers itself; this has the page ask its reader for a token.
        dependencies=[Security(HTTPBearer(auto_error=False))] if parts.callers.requires_token else [],
    )
    for face in FACES:
        app.include_router(face.router(parts))
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _fault)
    if parts.settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=parts.settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[TIMING_HEADER, MASK_HEADER],
        )
    return app


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return _error(error.kind.http_status, str(error), _BESIDE.get(error.kind))


def _unreadable(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error(Kind.UNPROCESSABLE.http_status, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")


def _unknown(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), dict(error.headers or {}))


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_GONE)


def _fault(_: Request, __: Exception) -> JSONResponse:
    return _error(Kind.FAILED.http_status, "internal error: the worker's log has the traceback")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers=headers)
