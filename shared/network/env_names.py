"""Tokens: the variables of the environment that hold them."""

GATEWAY = "SKYLANE_GATEWAY_TOKEN"  # Lets its bearer in at a worker's doors.
WORKER = "SKYLANE_WORKER_TOKEN"  # What a vehicle shows there.
REMOTE = "SKYLANE_REMOTE_TOKEN"  # What a worker shows to a server that has a model.
TOKEN_VARIABLES = (GATEWAY, WORKER, REMOTE)  # No process needs to see them but the one that each is for.
