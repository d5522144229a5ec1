"""`/v1/owners`: whose everything is, and what they may have; `/v1/owner` is who asks."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api.calls import json_only
from relaxc.service.api.ids import OwnerId
from relaxc.service.api.owner_objects import Keys, NewOwner, OwnerChange, OwnerQuotas, Owners, OwnerWish
from relaxc.service.api.owners import Admin, Anybody
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["keys"])

_MADE: dict[int | str, dict[str, Any]] = {
    201: {"description": "The owner, with what signs its webhooks: that is not shown again."},
    **responses("invalid-option", "unsupported-media-type"),
}
_UNKNOWN = responses("owner-not-found")
_CHANGED = responses("owner-not-found", "invalid-option", "unsupported-media-type", "admin-needed")
_REVOKED = responses("owner-not-found", "admin-needed")


@router.post(
    "/owners",
    status_code=201,
    response_model=NewOwner,
    responses=_MADE,
    dependencies=[Depends(json_only)],
    summary="Make an owner",
)
def make_owner(wish: OwnerWish, request: Request, owner: Admin) -> Response:
    """Make an owner without keys; `POST /v1/keys` with its id as `owner` adds one."""
    row = backend_of(request).owners.create(wish.name, weight=wish.weight)
    secret = {"webhook_secret": row.webhook_secret}
    headers = {"Cache-Control": "no-store", "Location": f"/v1/owners/{row.id}"}
    return JSONResponse({**row.to_dict(), **secret}, 201, headers=headers)


@router.get("/owners", response_model=Owners, summary="Every owner")
def list_owners(request: Request, owner: Admin) -> Response:
    """List them, also disabled ones, the newest first."""
    return JSONResponse({"owners": [row.to_dict() for row in backend_of(request).owners.list()]})


@router.get("/owner", response_model=OwnerQuotas, summary="Who you are, and what you may have")
def get_mine(request: Request, owner: Anybody) -> Response:
    """Return the owner in whose name the key asks, its quotas, and what it uses of them."""
    return JSONResponse(backend_of(request).allowance.describe(owner.id), headers={"Cache-Control": "no-store"})


@router.get("/owners/{id}", response_model=OwnerQuotas, responses=_UNKNOWN, summary="An owner")
def get_owner(id: OwnerId, request: Request, owner: Admin) -> Response:
    """Return the owner, its quotas, and what it uses of them."""
    backend = backend_of(request)
    return JSONResponse(backend.allowance.describe(backend.owners.find(id).id), headers={"Cache-Control": "no-store"})


@router.patch(
    "/owners/{id}",
    response_model=NewOwner,
    responses=_CHANGED,
    dependencies=[Depends(json_only)],
    summary="Change an owner",
)
def change_owner(id: OwnerId, wish: OwnerChange, request: Request, owner: Admin) -> Response:
    """Change what is given. A disabled owner's keys are refused within a second, and its queued jobs wait.

    Nobody disables itself, nor the last admin that there is.
    """
    quotas = {} if wish.quotas is None else wish.quotas.model_dump(exclude_none=True)
    row = backend_of(request).owners.change(id, **wish.model_dump(exclude={"quotas"}), quotas=quotas, asker=owner.id)
    secret = row.webhook_secret if wish.new_webhook_secret else None
    return JSONResponse({**row.to_dict(), "webhook_secret": secret}, headers={"Cache-Control": "no-store"})


@router.delete("/owners/{id}/keys", response_model=Keys, responses=_REVOKED, summary="Revoke all keys of an owner")
def revoke_keys(id: OwnerId, request: Request, owner: Admin) -> Response:
    """Revoke them: every server of the database refuses them within a second. What the owner has stays.

    Nobody takes admin from itself so, nor from the last who has it.
    """
    return JSONResponse({"keys": [row.to_dict() for row in backend_of(request).keys.revoke_all(id, asker=owner.id)]})
