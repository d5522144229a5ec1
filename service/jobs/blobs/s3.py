"""An S3 bucket, or what speaks its protocol: the same names below a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, StoreUnreachable, StoreUnwritable
from relaxc.service.jobs.blobs.deadline import Deadlines

__all__ = ["Listed", "S3Blobs"]

T = TypeVar("T")

_PART_BYTES = 16 << 20
_SMALL_BYTES = 64 << 10
_MISSING = {"404", "NoSuchKey", "NotFound"}
_CONNECT_S, _READ_S, _ATTEMPTS = 5.0, 20.0, 3
_SLOWEST = 1 << 20
"""Bytes a second, for which a call is given more time."""

_AT_ONCE, _REST_S = 16, 10.0


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of the bucket, and the Unix time at which it was put there last."""

    name: str
    modified: float


class S3Blobs:
    """Objects of `s3://BUCKET/PREFIX`; credentials are boto3's business (environment, profile, instance role).

    A call has RELAXC_S3_TIMEOUT_S, and more for what is large; then it raises StoreUnreachable, a StoreUnwritable that
    is nobody's fault here, and the bucket is left alone for some seconds.
    """

    def __init__(self, url: str, endpoint_url: str | None = None, *, rest_s: float = _REST_S) -> None:
        """Raise InvalidOption for another URL, and StoreUnwritable for a bucket that does not answer."""
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise InvalidOption(f"RELAXC_BLOBS_URL takes s3://BUCKET/PREFIX, not {url!r}", option="blobs_url")
        self._bucket, self._prefix = parts.netloc, f"{parts.path.strip('/')}/".lstrip("/")
        self._limit_s = settings().s3_timeout_s
        config = Config(
            connect_timeout=min(_CONNECT_S, self._limit_s),
            read_timeout=min(_READ_S, self._limit_s),
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},
            max_pool_connections=2 * _AT_ONCE,
        )
        self._client: Any = boto3.client("s3", endpoint_url=endpoint_url, config=config)
        self._transfer = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
        self._deadlines = Deadlines(_AT_ONCE, rest_s)
        what = f"the bucket {self._bucket} does not answer"
        self._call(what, 0, lambda: self._client.head_bucket(Bucket=self._bucket))

    def put(self, name: str, file: Path) -> None:
        """Upload the file. Raise StoreUnwritable."""
        arguments = (str(file), self._bucket, self._prefix + name)
        size = file.stat().st_size
        self._call(
            f"{name} cannot be mirrored", size, lambda: self._client.upload_file(*arguments, Config=self._transfer)
        )

    def fetch(self, name: str, path: Path) -> bool:
        """Download the object to `path`; False where there is none. Raise StoreUnwritable."""
        what = f"{name} cannot be fetched"
        size = self._call(what, 0, lambda: self._size(name))
        if size is None:
            return False
        arguments = (self._bucket, self._prefix + name, str(path))
        self._call(what, size, lambda: self._client.download_file(*arguments, Config=self._transfer))
        return True

    def _size(self, name: str) -> int | None:
        """How many bytes the object has; None where there is none."""
        found = self._found(lambda: self._client.head_object(Bucket=self._bucket, Key=self._prefix + name))
        return None if found is None else int(found["ContentLength"])

    def _found(self, asked: Callable[[], Any]) -> Any:
        """The answer about one object; None where there is none."""
        try:
            return asked()
        except self._client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _MISSING:
                raise
            return None

    def remove(self, name: str) -> None:
        """Delete the object; nothing where there is none. Raise StoreUnwritable."""
        key = self._prefix + name
        self._call(f"{name} cannot be removed", 0, lambda: self._client.delete_object(Bucket=self._bucket, Key=key))

    def read(self, name: str) -> bytes | None:
        """Return the beginning of a small object; None where there is none. Raise StoreUnwritable."""
        return self._call(f"{name} cannot be fetched", 0, lambda: self._beginning(name))

    def _beginning(self, name: str) -> bytes | None:
        found = self._found(lambda: self._client.get_object(Bucket=self._bucket, Key=self._prefix + name))
        return None if found is None else bytes(found["Body"].read(_SMALL_BYTES))

    def names(self, after: str) -> list[Listed]:
        """Return the next objects whose names are over `after`, in order, a thousand at most. Raise StoreUnwritable."""
        start = {"StartAfter": self._prefix + after} if after else {}
        page = self._call(
            "the bucket cannot be listed",
            0,
            lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **start),
        )
        found = page.get("Contents", ())
        return [Listed(each["Key"][len(self._prefix) :], each["LastModified"].timestamp()) for each in found]

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _call(self, what: str, size: int, function: Callable[[], T]) -> T:
        def named() -> T:
            with _failing(what):
                return function()

        return self._deadlines.call(what, self._limit_s + size / _SLOWEST, named)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error, RetriesExceededError
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        yield
    except (HTTPClientError, RetriesExceededError) as error:
        raise StoreUnreachable(f"{what}: {error}") from error
    except (BotoCoreError, Boto3Error, ClientError, OSError) as error:
        remedy = "Check RELAXC_BLOBS_URL, RELAXC_S3_ENDPOINT_URL and the credentials."
        raise StoreUnwritable(f"{what}: {error}", remedy=remedy) from error
