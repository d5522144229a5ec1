"""Every error relaxc raises on purpose, as one tree.

RelaxcError                      code, http_status, exit_code, remedy, fault, retryable; `fields` for --json and HTTP
├── RequestError          exit 2   what was asked for cannot be asked for
│   ├── InvalidOption            an option has a value outside its domain, or options contradict each other
│   ├── InvalidTarget            a target that is unknown, malformed or incomplete
│   ├── InvalidShape             a --shape that does not fit the model's inputs
│   ├── InvalidRecords           tuning records that are missing or cannot be read
│   ├── PluginError              a --plugin file that cannot be loaded or breaks the module
│   ├── Unauthorized             no key, or one that is unknown, expired or revoked
│   ├── Forbidden                the key has not the scope that the call needs
│   ├── JobNotFound              no job with that id that this key may see
│   ├── JobEnded                 the job is at its end already
│   ├── RecordsNotFound          no record set with that digest
│   ├── KeyNotFound              no key with that id
│   ├── OwnerNotFound            no owner with that id or name
│   ├── AdminNeeded              it would leave its sender, or the server, without an admin
│   ├── UploadConflict           bytes for another place than where the upload stands
│   ├── DigestMismatch           the content has another digest than was announced
│   └── IdempotencyConflict      an Idempotency-Key that came with another body before
├── ModelError            exit 3   the model cannot be used as it is
│   ├── ModelNotFound            no file at that path
│   ├── UnknownFormat            neither ONNX nor a torch.export archive
│   ├── ModelMalformed           the file is damaged, or its graph contradicts itself
│   ├── ModelTooLarge            the file, or what it unpacks to, is over the limit
│   ├── ModelUnsafe              it would need code of its own run, or files outside its folder
│   └── UnsupportedModel         well-formed, but with operators, dtypes or opsets that we do not have
├── CompileError          exit 4   the compiler failed on a model that it should take
│   ├── CompileFailed            a stage raised; the stage is named
│   ├── CompilerCrashed          the compiling process died
│   ├── CompilerTimeout          it passed its time limit
│   ├── CompilerOutOfMemory      it passed its memory limit
│   ├── CompilerOutOfDisk        its files passed their limit
│   ├── NotTuned                 --require-tuned, and a PrimFunc has no record that fits
│   ├── ToolMissing              a program that the build needs (g++, nvcc) is not installed
│   ├── ServerDied               the server that ran it ended in the middle, twice
│   └── Cancelled                somebody cancelled it
├── VerificationFailed    exit 5   the artifact's numbers differ from the reference's
├── ArtifactError         exit 6   a compiled file cannot be used
│   ├── ArtifactNotFound         no artifact with that digest, or no file at that path
│   ├── ArtifactCorrupt          not one of ours, truncated, or its digest is wrong
│   ├── RebuildDiffers           `relaxc rebuild` made other bytes of the same model
│   └── MachineMismatch          compiled for a machine that this one is not
├── InputError            exit 7   the inputs of a run do not fit the artifact's signature
│   ├── InputName                missing, unknown or repeated
│   ├── InputType                wrong dtype or device
│   ├── InputShape               wrong rank, size, or a symbolic dim outside its bounds
│   └── StateOverflow            the call would write outside of what the session keeps
└── ServiceError          exit 8   the server cannot answer now
    ├── Busy                     the queue is full
    ├── NoWorker                 no live worker is of the kind that the job needs
    ├── RateLimited              one key has asked too often
    ├── QuotaExceeded            the owner has as many jobs or hours of tuning as it may have
    ├── StorageQuotaExceeded     the owner has as many bytes as it may keep
    ├── StoreUnwritable          the artifact store's disk is full, or not ours to write
    │   └── StoreUnreachable     the bucket behind it does not answer
    └── ServerUnreachable        no server at that address, or it went away
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

__all__ = [
    "AdminNeeded",
    "ArtifactCorrupt",
    "ArtifactError",
    "ArtifactNotFound",
    "Busy",
    "Cancelled",
    "CompileError",
    "CompileFailed",
    "CompilerCrashed",
    "CompilerOutOfDisk",
    "CompilerOutOfMemory",
    "CompilerTimeout",
    "DigestMismatch",
    "Fault",
    "Forbidden",
    "IdempotencyConflict",
    "InputError",
    "InputName",
    "InputShape",
    "InputType",
    "InvalidOption",
    "InvalidRecords",
    "InvalidShape",
    "InvalidTarget",
    "JobEnded",
    "JobNotFound",
    "KeyNotFound",
    "MachineMismatch",
    "ModelError",
    "ModelMalformed",
    "ModelNotFound",
    "ModelTooLarge",
    "ModelUnsafe",
    "NoWorker",
    "NotTuned",
    "OwnerNotFound",
    "PluginError",
    "QuotaExceeded",
    "RateLimited",
    "RecordsNotFound",
    "RelaxcError",
    "RequestError",
    "ServerDied",
    "ServerUnreachable",
    "ServiceError",
    "StateOverflow",
    "StorageQuotaExceeded",
    "StoreUnreachable",
    "StoreUnwritable",
    "ToolMissing",
    "Unauthorized",
    "UnknownFormat",
    "UnsupportedModel",
    "UploadConflict",
    "VerificationFailed",
    "by_code",
    "in_one_line",
]


Fault = Literal["request", "model", "compiler", "service"]
"""Who has to change something: the caller, the model's author, the compiler's authors, or who runs the service."""


class RelaxcError(Exception):
    """Base of every error that relaxc raises on purpose.

    `message` is one sentence for a person; `fields` are JSON values for a program (node names,
    limits, found values). `code` is stable and the same in the CLI's `--json` and in problem+json.
    `retryable` says that the same request, unchanged, may succeed later.
    """

    code: ClassVar[str] = "relaxc-error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    remedy: ClassVar[str] = "Run again with --verbose and report the trace."
    fault: ClassVar[Fault] = "service"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields
        if remedy is not None:
            self.remedy = remedy  # type: ignore[misc]  # an instance may know better than its class

    @property
    def node(self) -> str | None:
        """The first node of the model that the error speaks of: in `node`, `nodes`, or an operator's in `ops`."""
        ops = self.fields.get("ops")
        rows = [self.fields, *(ops.values() if isinstance(ops, dict) else ())]
        lists = [row.get("nodes") for row in rows if isinstance(row, dict)]
        named = [nodes[0] for nodes in lists if isinstance(nodes, list) and nodes]
        first = self.fields.get("node") or next(iter(named), None)
        return None if first is None else str(first)

    def to_dict(self) -> dict[str, Any]:
        """Everything about the error as JSON values; `from_dict` is its inverse."""
        return {
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "fault": self.fault,
            "node": self.node,
            "retryable": self.retryable,
            "fields": self.fields,
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> RelaxcError:
        """Return the error that `to_dict` described, of its own class; an unknown code gives the base class."""
        kind = by_code().get(data.get("code", ""), RelaxcError)
        return kind(data.get("message", ""), remedy=data.get("remedy"), **(data.get("fields") or {}))


def by_code() -> dict[str, type[RelaxcError]]:
    """Return every error class by its code."""
    found: dict[str, type[RelaxcError]] = {}
    pending: list[type[RelaxcError]] = [RelaxcError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return found


class RequestError(RelaxcError):
    code = "request-error"
    http_status = 400
    exit_code = 2
    remedy = "Correct the request; `relaxc compile --help` lists every option."
    fault: ClassVar[Fault] = "request"


class InvalidOption(RequestError):
    code = "invalid-option"


class InvalidTarget(RequestError):
    code = "invalid-target"
    remedy = "Use `auto`, a tag that `relaxc targets` lists, or target JSON with a `kind`."


class InvalidShape(RequestError):
    code = "invalid-shape"
    remedy = "`relaxc inspect MODEL` prints the inputs with their shapes; give `--shape NAME=1,3,224,224`."


class InvalidRecords(RequestError):
    code = "invalid-records"
    remedy = "`relaxc records ls DIR` reads them all; correct or remove the line that the message names."


class PluginError(RequestError):
    code = "plugin-error"
    remedy = "See docs/adding_a_pass.md for what a plugin file may define."


class Unauthorized(RequestError):
    code = "unauthorized"
    http_status = 401
    remedy = "Send `Authorization: Bearer rk_…` with a key that an admin made."


class Forbidden(RequestError):
    code = "forbidden"
    http_status = 403
    remedy = "Ask an admin for a key with the scope that the message names."


class JobNotFound(RequestError):
    code = "job-not-found"
    http_status = 404
    remedy = "`GET /v1/jobs` lists the jobs that your key may see."


class JobEnded(RequestError):
    code = "job-ended"
    http_status = 409
    remedy = "Nothing is left to do; `GET /v1/jobs/{id}` shows how it ended."


class RecordsNotFound(RequestError):
    code = "records-not-found"
    http_status = 404
    remedy = "`GET /v1/records` lists the record sets that your key may see."


class KeyNotFound(RequestError):
    code = "key-not-found"
    http_status = 404
    remedy = "`GET /v1/keys` lists the keys."


class OwnerNotFound(RequestError):
    code = "owner-not-found"
    http_status = 404
    remedy = "`relaxc owners ls` and `GET /v1/owners` list the owners; `relaxc owners create NAME` makes one."


class AdminNeeded(RequestError):
    code = "admin-needed"
    http_status = 409
    remedy = (
        "Have another admin do it, or make another admin's key before; who runs the server may do it there, with "
        "`relaxc owners set` and `relaxc keys revoke`."
    )


class UploadConflict(RequestError):
    code = "upload-conflict"
    http_status = 409
    remedy = "Go on from the byte that `Upload-Offset` names."


class DigestMismatch(RequestError):
    code = "digest-mismatch"
    http_status = 422
    remedy = "Compute the SHA-256 of the file again, and send the whole file; nothing of it was kept."


class IdempotencyConflict(RequestError):
    code = "idempotency-conflict"
    http_status = 422
    remedy = "Use a new Idempotency-Key for a new request."


class ModelError(RelaxcError):
    code = "model-error"
    http_status = 422
    exit_code = 3
    remedy = "Export the model again, and check it in the framework that made it."
    fault: ClassVar[Fault] = "model"


class ModelNotFound(ModelError):
    code = "model-not-found"
    http_status = 404
    remedy = "Check the path."
    fault = "request"


class UnknownFormat(ModelError):
    code = "unknown-format"
    http_status = 415
    remedy = "Send an ONNX file, or a .pt2 written by torch.export.save."


class ModelMalformed(ModelError):
    code = "model-malformed"


class ModelTooLarge(ModelError):
    code = "model-too-large"
    http_status = 413
    remedy = "Raise the limit named in the message (docs/settings.md), or send a smaller model."
    fault = "request"


class ModelUnsafe(ModelError):
    code = "model-unsafe"
    remedy = "Export the model without custom pickled objects, and with its external data beside it."


class UnsupportedModel(ModelError):
    code = "unsupported-model"
    remedy = "`relaxc inspect MODEL` lists every unsupported node; replace these operators, or add them with a plugin."


class CompileError(RelaxcError):
    code = "compile-error"
    http_status = 500
    exit_code = 4
    fault: ClassVar[Fault] = "compiler"


class CompileFailed(CompileError):
    code = "compile-failed"
    remedy = "This is our bug: report the model and the message; `--dump DIR` shows the module at each stage."


class CompilerCrashed(CompileError):
    code = "compiler-crashed"
    remedy = "This is our bug: report it with the repro command and the log tail. Other compiles are not affected."


class CompilerTimeout(CompileError):
    code = "compiler-timeout"
    http_status = 504
    remedy = "Raise RELAXC_COMPILE_TIMEOUT_S, or compile at a lower -O."


class CompilerOutOfMemory(CompileError):
    code = "compiler-out-of-memory"
    http_status = 507
    remedy = "Raise RELAXC_COMPILE_MEMORY_BYTES, or compile on a larger machine."


class CompilerOutOfDisk(CompileError):
    code = "compiler-out-of-disk"
    http_status = 507
    remedy = "Raise RELAXC_COMPILE_DISK_BYTES, or compile a smaller model."


class NotTuned(CompileError):
    code = "not-tuned"
    http_status = 422
    fault = "request"
    remedy = (
        "`relaxc tune MODEL --records DIR` makes the records that are missing, then compile with `--records DIR`; "
        "or compile without --require-tuned."
    )


class ToolMissing(CompileError):
    code = "tool-missing"
    remedy = "Install the program that the message names (on Debian: apt-get install g++)."
    fault = "service"


class ServerDied(CompileError):
    code = "server-died"
    http_status = 503
    remedy = "Submit it again; where it happens again, report it with the server's log."
    fault = "service"
    retryable = True


class Cancelled(CompileError):
    code = "cancelled"
    http_status = 409
    remedy = "Submit it again."
    fault = "request"
    retryable = True


class VerificationFailed(RelaxcError):
    code = "verification-failed"
    http_status = 422
    exit_code = 5
    remedy = "Report it: a wrong number is our worst bug. `--no-verify` builds it all the same and records the failure."
    fault: ClassVar[Fault] = "compiler"


class ArtifactError(RelaxcError):
    code = "artifact-error"
    http_status = 422
    exit_code = 6
    remedy = "Compile the model again."
    fault: ClassVar[Fault] = "request"


class ArtifactNotFound(ArtifactError):
    code = "artifact-not-found"
    http_status = 404
    remedy = "Check the path or digest; `relaxc cache ls` lists what is kept."


class ArtifactCorrupt(ArtifactError):
    code = "artifact-corrupt"


class RebuildDiffers(ArtifactError):
    code = "rebuild-differs"
    http_status = 409
    remedy = "Rebuild with the versions, plugins and records that `relaxc inspect --json` shows."


class MachineMismatch(ArtifactError):
    code = "machine-mismatch"
    http_status = 409
    remedy = "Compile with `--target` set to this machine (`relaxc targets` names it), or run it where it was meant to."


class InputError(RelaxcError):
    code = "input-error"
    http_status = 400
    exit_code = 7
    remedy = "`relaxc inspect OUT.so` prints the inputs with their shapes and dtypes."
    fault: ClassVar[Fault] = "request"


class InputName(InputError):
    code = "input-name"


class InputType(InputError):
    code = "input-type"


class InputShape(InputError):
    code = "input-shape"


class StateOverflow(InputError):
    code = "state-overflow"
    remedy = "Begin anew with `session.state.reset()`, or export the model with a longer cache."


class ServiceError(RelaxcError):
    code = "service-error"
    http_status = 503
    exit_code = 8
    remedy = "Try again later."
    retryable = True


class Busy(ServiceError):
    code = "busy"
    http_status = 429


class NoWorker(ServiceError):
    code = "no-worker"
    remedy = "Ask for a target that a worker has, or have a worker of that kind started and ask again."


class RateLimited(ServiceError):
    code = "rate-limited"
    http_status = 429
    remedy = "Wait for the seconds that `Retry-After` names."
    fault = "request"


class QuotaExceeded(ServiceError):
    code = "quota-exceeded"
    http_status = 429
    remedy = "Wait until jobs of yours have ended, or ask an admin for more; `relaxc --server URL quota` shows it all."
    fault = "request"


class StorageQuotaExceeded(ServiceError):
    code = "storage-quota-exceeded"
    http_status = 507  # as RFC 4331 has it for quotas
    remedy = (
        "Delete models, artifacts or record sets that you need no more (`DELETE /v1/models/{digest}` and the like), "
        "or ask an admin for more; `GET /v1/owner` shows your quotas."
    )
    fault = "request"
    retryable = False


class StoreUnwritable(ServiceError):
    code = "store-unwritable"
    http_status = 507
    remedy = "Free space (`relaxc cache gc`), or set RELAXC_CACHE_DIR to a folder on another disk."


class StoreUnreachable(StoreUnwritable):
    code = "store-unreachable"
    http_status = 503
    remedy = "Try again later; who runs the server should look at the bucket of RELAXC_BLOBS_URL."


class ServerUnreachable(ServiceError):
    code = "server-unreachable"
    http_status = 502
    remedy = "Check the address, and that `relaxc serve` runs there."


def in_one_line(error: BaseException) -> str:
    """Return the type of an error that is not ours, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
