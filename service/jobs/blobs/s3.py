"""An S3 bucket, or what speaks its protocol: the same names below a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from service.errors import InvalidOption, StoreUnwritable

__all__ = ["Listed", "S3Blobs"]

_PART_BYTES = 16 << 20
_SMALL_BYTES = 64 << 10
_MISSING = {"404", "NoSuchKey", "NotFound"}


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of the bucket, and the Unix time at which it was put there last."""

    name: str
    modified: float


class S3Blobs:
    """Objects of `s3://BUCKET/PREFIX`; credentials are boto3's business (environment, profile, instance role)."""

    def __init__(self, url: str, endpoint_url: str | None = None) -> None:
        """Raise InvalidOption for another URL, and for a bucket that does not answer."""
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise InvalidOption(f"RELAXC_BLOBS_URL takes s3://BUCKET/PREFIX, not {url!r}", option="blobs_url")
        self._bucket, self._prefix = parts.netloc, f"{parts.path.strip('/')}/".lstrip("/")
        config = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 4})
        self._client: Any = boto3.client("s3", endpoint_url=endpoint_url, config=config)
        self._transfer = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
        with self._failing(f"the bucket {self._bucket} does not answer"):
            self._client.head_bucket(Bucket=self._bucket)

    def put(self, name: str, file: Path) -> None:
        """Upload the file. Raise StoreUnwritable."""
        with self._failing(f"{name} cannot be mirrored"):
            self._client.upload_file(str(file), self._bucket, self._prefix + name, Config=self._transfer)

    def fetch(self, name: str, path: Path) -> bool:
        """Download the object to `path`; False where there is none. Raise StoreUnwritable."""
        with self._failing(f"{name} cannot be fetched"):
            try:
                self._client.download_file(self._bucket, self._prefix + name, str(path), Config=self._transfer)
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _MISSING:
                    raise
                return False
            return True

    def remove(self, name: str) -> None:
        """Delete the object; nothing where there is none. Raise StoreUnwritable."""
        with self._failing(f"{name} cannot be removed"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def read(self, name: str) -> bytes | None:
        """Return the beginning of a small object; None where there is none. Raise StoreUnwritable."""
        with self._failing(f"{name} cannot be fetched"):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _MISSING:
                    raise
                return None
            return bytes(found["Body"].read(_SMALL_BYTES))

    def names(self, after: str) -> list[Listed]:
        """Return the next objects whose names are over `after`, in order, a thousand at most. Raise StoreUnwritable."""
        with self._failing("the bucket cannot be listed"):
            start = {"StartAfter": self._prefix + after} if after else {}
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, **start)
        found = page.get("Contents", ())
        return [Listed(each["Key"][len(self._prefix) :], each["LastModified"].timestamp()) for each in found]

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, Boto3Error, ClientError, OSError) as error:
            remedy = "Check RELAXC_BLOBS_URL, RELAXC_S3_ENDPOINT_URL and the credentials."
            raise StoreUnwritable(f"{what}: {error}", remedy=remedy) from error
