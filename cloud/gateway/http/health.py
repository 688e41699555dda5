"""Health, for whoever starts, watches and balances workers; nobody needs a token for it."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from cloud.gateway.context import WorkerContext
from shared.messages.node_status import NodeState


class Health(BaseModel):
    """Whether the worker answers."""

    status: Literal["ready", "unhealthy", "stopping"]
    worker: str
    models: list[str]


def router(parts: WorkerContext) -> APIRouter:
    """`/healthz`."""
    routes = APIRouter(tags=["health"])

    @routes.head("/healthz", include_in_schema=False)
    @routes.get(
        "/healthz",
        summary="Whether the worker takes calls",
        responses={
            503: {
                "model": Health,
                "description": "It is stopping, or many requests failed unexpectedly within a minute.",
            }
        },
    )
    async def health(response: Response) -> Health:
        status = parts.door.status
        is_online = status.state is NodeState.ONLINE
        state: Literal["ready", "unhealthy", "stopping"] = "stopping"
        if is_online:
            state = "ready" if parts.errors.is_healthy else "unhealthy"
        response.status_code = 200 if state == "ready" else 503
        names = list(dict.fromkeys(card.name for card in status.cards))
        return Health(status=state, worker=parts.worker, models=names)

    return routes
