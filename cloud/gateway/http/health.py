"""`GET /healthz` for process supervisors and load balancers; needs no token."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from cloud.gateway.context import WorkerContext
from shared.messages.node_status import NodeState


class Health(BaseModel):
    """State of the worker."""

    status: Literal["ready", "unhealthy", "stopping"]
    worker: str
    models: list[str]


def router(worker: WorkerContext) -> APIRouter:
    """Creates the route `/healthz`."""
    routes = APIRouter(tags=["health"])

    @routes.head("/healthz", include_in_schema=False)
    @routes.get(
        "/healthz",
        summary="Whether the worker accepts calls",
        responses={
            503: {
                "model": Health,
                "description": "It is stopping, or many requests failed unexpectedly within a minute.",
            }
        },
    )
    async def health(response: Response) -> Health:
        status = worker.submission.status
        state: Literal["ready", "unhealthy", "stopping"] = "stopping"
        if status.state is NodeState.ONLINE:
            state = "ready" if worker.request_errors.is_healthy else "unhealthy"
        response.status_code = 200 if state == "ready" else 503
        names = list(dict.fromkeys(card.name for card in status.cards))
        return Health(status=state, worker=worker.name, models=names)

    return routes
