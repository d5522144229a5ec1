"""Owners, their quotas and their keys as JSON: what calls take and give, for checks and for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from relaxc.service.api.objects import LINE, Time

__all__ = [
    "Key",
    "KeyRotation",
    "KeyWish",
    "Keys",
    "NewKey",
    "NewOwner",
    "OwnerChange",
    "OwnerQuotas",
    "OwnerWish",
    "Owners",
]

_AN_OWNER = "o_4fUqk0ZtX1aW"
_YEARS_S = 100 * 365 * 86400

Scope = Literal["read", "compile", "tune", "admin"]


class KeyWish(BaseModel):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=LINE, max_length=200, description="Who has it, and where.", examples=["build farm"])
    owner: str | None = Field(
        None,
        pattern=LINE,
        max_length=200,
        description="In whose name it asks: an owner's id or name; null is a new owner of the key's name.",
        examples=[None],
    )
    scopes: list[Scope] = Field(min_length=1, max_length=4, examples=[["read", "compile"]])
    expires_s: float | None = Field(
        None,
        gt=0,
        le=_YEARS_S,
        allow_inf_nan=False,
        description="Seconds from now; null is never.",
        examples=[None],
    )
    weight: float | None = Field(
        None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="The new owner's share of the workers when several want them; null is 1.",
        examples=[None],
    )


class KeyRotation(BaseModel):
    """How a key gives way to a new one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grace_s: float = Field(
        0.0, ge=0, le=_YEARS_S, allow_inf_nan=False, description="Seconds for which the old one works on."
    )


class Key(BaseModel):
    """A key without its secret."""

    id: str = Field(examples=["k_4fUqk0ZtX1aW"])
    name: str
    owner: str = Field(description="In whose name it asks.", examples=[_AN_OWNER])
    owner_name: str
    scopes: list[Scope]
    weight: float = Field(description="Its owner's.")
    created: Time
    expires: Time | None
    revoked: Time | None


class NewKey(Key):
    """A key with what is never shown again."""

    secret: str = Field(examples=["rk_…"])
    webhook_secret: str | None = Field(
        description="Signs what is sent to its owner's webhooks; null where the owner was there before.",
        examples=["whsec_…"],
    )


class Keys(BaseModel):
    """Every key, the newest first."""

    keys: list[Key]


class OwnerWish(BaseModel):
    """An owner to be made."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=LINE, max_length=200, description="Who it is.", examples=["vision team"])
    weight: float = Field(
        1.0, gt=0, le=1000, allow_inf_nan=False, description="Its share of the workers when several owners want them."
    )


Wish = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)] | Literal["default", "unlimited"] | None


class QuotaWishes(BaseModel):
    """What an owner may have at a time; `default` is the server's setting, null stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queued_jobs: Wish = Field(None, description="Jobs that wait.", examples=[10])
    running_jobs: Wish = Field(None, description="Jobs that run at the same time; more wait.", examples=["default"])
    bytes: Wish = Field(None, description="Of models, artifacts, record sets and uploads.", examples=["unlimited"])
    tuning_hours: Wish = Field(None, description="Of tuning in 30 days.", examples=[None])


class OwnerChange(BaseModel):
    """What of an owner is to be changed; null stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(None, pattern=LINE, max_length=200, examples=[None])
    weight: float | None = Field(None, gt=0, le=1000, allow_inf_nan=False, examples=[2.0])
    disabled: bool | None = Field(
        None, description="Whether its keys are refused, and its queued jobs wait.", examples=[None]
    )
    quotas: QuotaWishes | None = None
    new_webhook_secret: bool = Field(False, description="Sign its webhooks with a new secret, which is answered.")


class Owner(BaseModel):
    """Whose models and jobs there are; its keys are ways to ask in its name."""

    id: str = Field(examples=[_AN_OWNER])
    name: str
    weight: float
    created: Time
    disabled: Time | None


class Quota(BaseModel):
    """A limit, null where there is none, and what is used of it."""

    limit: float | None
    used: float


class TuningQuota(Quota):
    """Hours of tuning; those that wait or run are used with what they asked for."""

    days: float = Field(description="Over how many days they are counted.")


class Quotas(BaseModel):
    """What an owner may have at a time."""

    queued_jobs: Quota
    running_jobs: Quota
    bytes: Quota
    tuning_hours: TuningQuota


class OwnerQuotas(Owner):
    """An owner, with what it may have and has."""

    quotas: Quotas


class NewOwner(Owner):
    """An owner, with what is shown once."""

    webhook_secret: str | None = Field(None, description="Signs what is sent to its webhooks.", examples=["whsec_…"])


class Owners(BaseModel):
    """Every owner, the newest first."""

    owners: list[Owner]
