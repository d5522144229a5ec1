"""A server of TVM's RPC for tuning on another machine, which outlives candidates that crash.

`python -m relaxc.service.tuning.measure.rpc_server --tracker HOST:PORT --key KEY [--threads N]`
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

from relaxc.service import machine

__all__ = ["main"]

_LOG = logging.getLogger("RPCServer")
_PORTS = 100


def main() -> None:
    """Register at the tracker and serve one session after the other, each in a process of its own, until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tracker", required=True, metavar="HOST:PORT", help="where to register")
    parser.add_argument("--key", required=True, help="what tuners ask for")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; whoever reaches it runs code here")
    parser.add_argument("--port", type=int, default=9090, help="first port to try, of 100")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of a kernel at most")
    arguments = parser.parse_args()
    host, _, port = arguments.tracker.rpartition(":")
    # TVM sizes its pool from the environment, to half of the logical CPUs otherwise, and pins it.
    os.environ.update(TVM_NUM_THREADS=str(arguments.threads), TVM_BIND_THREADS="0")
    machine.cpu()  # asks the kernel for AMX, which candidates may be made of; a session's process inherits it
    sys.modules["torch"] = None  # type: ignore[assignment]  # seconds of import that no kernel needs
    from tvm.rpc import server

    _survive_crashes(server)
    state = server.PopenRPCServerState(
        arguments.host,
        arguments.port,
        arguments.port + _PORTS,
        tracker_addr=(host, int(port)),
        key=arguments.key,
    )
    state.thread.join()


def _survive_crashes(server: Any) -> None:
    """TVM 0.27's listener ends with the first session whose process did; this one notes it and goes on."""
    serve = server._serving

    def serve_and_go_on(connection: socket.socket, *arguments: Any) -> None:
        home = Path.cwd()
        try:
            serve(connection, *arguments)
        except RuntimeError as error:
            _LOG.warning("a session ended early: %s", error)
        finally:
            os.chdir(home)
            with contextlib.suppress(OSError):  # the tuner may be gone
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    server._serving = serve_and_go_on


if __name__ == "__main__":
    main()
