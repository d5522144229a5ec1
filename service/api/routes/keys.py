"""`/v1/keys`: who may ask, in whose name, and for what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from relaxc.service.api.calls import json_only
from relaxc.service.api.ids import KeyId
from relaxc.service.api.owner_objects import Key, KeyRotation, Keys, KeyWish, NewKey
from relaxc.service.api.owners import Admin, Anybody
from relaxc.service.api.problems import responses
from relaxc.service.api.routes.backend import backend_of
from relaxc.service.errors import Forbidden
from relaxc.service.jobs.objects.key_secrets import NewKey as Made

__all__ = ["router"]

router = APIRouter(prefix="/v1/keys", tags=["keys"])

_MADE: dict[int | str, dict[str, Any]] = {
    201: {"description": "The key, with its secrets: they are not shown again."},
    **responses("invalid-option", "unsupported-media-type", "owner-not-found"),
}
_ROTATED: dict[int | str, dict[str, Any]] = {
    201: {"description": "The new key, with its secret: it is not shown again."},
    **responses("invalid-option", "unsupported-media-type", "key-not-found", "rate-limited"),
}
_REVOKED = responses("key-not-found", "admin-needed")


@router.post(
    "",
    status_code=201,
    response_model=NewKey,
    responses=_MADE,
    dependencies=[Depends(json_only)],
    summary="Make a key",
)
def make_key(wish: KeyWish, request: Request, owner: Admin) -> Response:
    """Make a key, and return its secret and the webhook secret, which are shown only once.

    As soon as one key exists, every call needs one. The scope `admin` includes all others.
    """
    keys = backend_of(request).keys
    made = keys.create(wish.name, wish.scopes, owner=wish.owner, expires_s=wish.expires_s, weight=wish.weight)
    return _shown(made)


@router.post(
    "/{id}/rotate",
    status_code=201,
    response_model=NewKey,
    responses=_ROTATED,
    dependencies=[Depends(json_only)],
    summary="Make a new key in place of one",
)
def rotate_key(id: KeyId, wish: KeyRotation, request: Request, owner: Anybody) -> Response:
    """Replace a key with a new one of the same owner, name, scopes and lifetime.

    The old key is revoked, or expires in `grace_s` seconds. Any key may rotate itself; the new one then expires when
    the old one would have. Only an admin may rotate other keys.
    """
    if id != owner.key and not owner.admin:
        raise Forbidden("a key without the scope admin rotates itself alone", scope="admin", has=sorted(owner.scopes))
    return _shown(backend_of(request).keys.rotate(id, grace_s=wish.grace_s, by_itself=not owner.admin))


@router.get("", response_model=Keys, summary="Every key")
def list_keys(request: Request, owner: Admin) -> Response:
    """List them, also revoked and expired ones, the newest first, without their secrets."""
    return JSONResponse({"keys": [row.to_dict() for row in backend_of(request).keys.list()]})


@router.delete(
    "/{id}", response_model=Key, responses=responses("key-not-found", "admin-needed"), summary="Revoke a key"
)
def revoke_key(id: KeyId, request: Request, owner: Admin) -> Response:
    """Revoke it: every server of the database refuses it within a second. What it made stays.

    Nobody takes admin from itself so, nor from the last who has it.
    """
    return JSONResponse(backend_of(request).keys.revoke(id, asker=owner.id).to_dict())


def _shown(made: Made) -> Response:
    return JSONResponse(made.to_dict(), 201, headers={"Cache-Control": "no-store"})
