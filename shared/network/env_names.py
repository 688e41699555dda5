"""Environment variables that hold secrets."""

GATEWAY = "SKYLANE_GATEWAY_TOKEN"  # Bearer token that a worker's gateway requires.
WORKER = "SKYLANE_WORKER_TOKEN"  # Bearer token that a vehicle sends to a worker.
REMOTE = "SKYLANE_REMOTE_TOKEN"  # Bearer token that a worker sends to a remote model server.
TOKEN_VARIABLES = (GATEWAY, WORKER, REMOTE)
BROKER_PASSWORD = "SKYLANE_BROKER_PASSWORD"  # noqa: S105 (a name)
BROKER_PASSWORD_FILE = "SKYLANE_BROKER_PASSWORD_FILE"  # noqa: S105 (a name)
BROKER_PASSWORD_VARIABLES = (BROKER_PASSWORD, BROKER_PASSWORD_FILE)
