"""`python -m relaxc.service.packaging DIR`: a package without an artifact, for images that are given theirs."""

from __future__ import annotations

import sys
from pathlib import Path

from relaxc.service import tvm_libraries
from relaxc.service.config import settings
from relaxc.service.packaging.runtime import write_runtime

_FFI = tvm_libraries.ffi_folder() / "lib" / tvm_libraries.FFI
_OTHERS = (tvm_libraries.RUNTIME, tvm_libraries.EXTRA, tvm_libraries.CUDA)

if __name__ == "__main__":
    libraries = [_FFI, *(tvm_libraries.runtime_folder() / name for name in _OTHERS)]
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    write_runtime(folder, libraries, tvm_libraries.runtime_version(), settings().cxx)
