"""The connection to a worker's HTTP server."""
