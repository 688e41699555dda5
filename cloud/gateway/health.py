"""Health, for whoever starts, watches and balances workers; nobody needs a token for it."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from cloud.gateway.worker_parts import WorkerParts
from shared.node_status import NodeState


class Health(BaseModel):
    """Whether the worker answers."""

    status: Literal["ready", "stopping"]
    worker: str
    models: list[str]


def router(parts: WorkerParts) -> APIRouter:
    """`/healthz`."""
    routes = APIRouter(tags=["health"])

    @routes.head("/healthz", include_in_schema=False)
    @routes.get(
        "/healthz",
        summary="Whether the worker takes calls",
        responses={503: {"model": Health, "description": "It is stopping: what came is still answered."}},
    )
    async def health(response: Response) -> Health:
        status = parts.door.status
        is_online = status.state is NodeState.ONLINE
        response.status_code = 200 if is_online else 503
        names = list(dict.fromkeys(card.name for card in status.cards))
        return Health(status="ready" if is_online else "stopping", worker=parts.worker, models=names)

    return routes
