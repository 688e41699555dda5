"""Foxglove's WebSocket server, to which Foxglove and Lichtblick connect."""

import foxglove

from edge.sinks.foxglove import FoxgloveScene
from edge.view.viewer import ViewError, ViewSettings, free_port, ipv4_address

_PORT = 8765  # Foxglove's own default.
_BACKLOG = 32  # Messages that wait for a slow program, which loses older ones.


class FoxgloveViewer:
    """See Viewer."""

    note = "open it in Foxglove or Lichtblick: 'Open connection', 'Foxglove WebSocket'"

    def __init__(self, settings: ViewSettings) -> None:
        """Starts the server.

        Raises:
            ViewError: the server does not start.
        """
        context = foxglove.Context()
        certificate = None if settings.tls_cert is None else settings.tls_cert.read_bytes()
        key = None if settings.tls_key is None else settings.tls_key.read_bytes()
        host = ipv4_address(settings.host)
        port = free_port(host, _PORT)
        try:
            self._server = foxglove.start_server(
                name="Skylane",
                host=host,
                port=port,
                context=context,
                message_backlog_size=_BACKLOG,
                tls_cert=certificate,
                tls_key=key,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise ViewError(f"Foxglove's server cannot listen on {settings.host}:{port}: {error}") from error
        self.address = f"{'wss' if certificate else 'ws'}://{settings.host}:{port}"
        self.scene = FoxgloveScene(context, settings.card, has_overlays=True)

    def check(self) -> None:
        """See Viewer; the server is a thread of this process."""

    def close(self) -> None:
        """See Viewer."""
        self._server.stop()
