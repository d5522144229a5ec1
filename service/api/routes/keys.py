"""`/v1/keys`: who may ask, and for what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from service.api.calls import json_only
from service.api.ids import KeyId
from service.api.objects import Key, Keys, KeyWish, NewKey
from service.api.owners import Admin
from service.api.problems import responses
from service.api.routes.backend import backend_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/keys", tags=["keys"])

_MADE: dict[int | str, dict[str, Any]] = {
    201: {"description": "The key, with its secrets: they are not shown again."},
    **responses("invalid-option", "unsupported-media-type"),
}


@router.post(
    "",
    status_code=201,
    response_model=NewKey,
    responses=_MADE,
    dependencies=[Depends(json_only)],
    summary="Make a key",
)
def make_key(wish: KeyWish, request: Request, owner: Admin) -> Response:
    """Show the secret, and what webhooks are signed with, this once. From the first key on nobody is served without.

    `admin` has every scope in it.
    """
    made = backend_of(request).keys.create(wish.name, wish.scopes, expires_s=wish.expires_s, weight=wish.weight)
    secrets = {"secret": made.secret, "webhook_secret": made.row.webhook_secret}
    return JSONResponse({**made.row.to_dict(), **secrets}, 201, headers={"Cache-Control": "no-store"})


@router.get("", response_model=Keys, summary="Every key")
def list_keys(request: Request, owner: Admin) -> Response:
    """List them, also revoked and expired ones, the newest first, without their secrets."""
    return JSONResponse({"keys": [row.to_dict() for row in backend_of(request).keys.list()]})


@router.delete("/{id}", response_model=Key, responses=responses("key-not-found"), summary="Revoke a key")
def revoke_key(id: KeyId, request: Request, owner: Admin) -> Response:
    """Revoke it: every server of the database refuses it within a second. What it made stays."""
    return JSONResponse(backend_of(request).keys.revoke(id).to_dict())
