"""Sessions of ONNX Runtime in a process of their own: it dies of the least integer divided by -1, as a CPU traps it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxc.service.frontend.onnx.file import bodies
from relaxc.service.frontend.onnx.noise import dtypes_of

__all__ = ["SessionApart", "may_die"]

_INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 12, 13))
"""Integer element types (onnx.TensorProto.DataType)."""


def may_die(model: Any) -> bool:
    """Return whether a model divides integers by what may be -1 or 0."""
    divisions = [node for body in bodies(model) for node in body.node if node.op_type in ("Div", "Mod")]
    harmless = _divisors(model)
    names = {node.input[1] for node in divisions if len(node.input) > 1 and node.input[1] not in harmless}
    return bool(names) and any(dtypes_of(model).get(name) in _INTEGERS for name in names)


def _divisors(model: Any) -> set[str]:
    """The names of constants that divide anything."""
    from onnx import numpy_helper

    held = {tensor.name: tensor for body in bodies(model) for tensor in getattr(body, "initializer", ())}
    for body in bodies(model):
        for node in body.node:
            for each in node.attribute if node.op_type == "Constant" else ():
                held[node.output[0]] = each.t
    found = set()
    for name, tensor in held.items():
        if tensor.data_type in _INTEGERS and tensor.data_location != 1 and len(tensor.dims) < 2:
            try:
                array = numpy_helper.to_array(tensor)
            except ValueError:  # its data was left out
                continue
            if not ((array == -1) | (array == 0)).any():
                found.add(name)
    return found


@dataclass(frozen=True)
class Value:
    """An input or output of a session."""

    name: str
    type: str


class SessionApart:
    """What `sessions.open_here` opens with these arguments, in a process that is started anew where it has died."""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._inputs, self._outputs = ([Value(*each) for each in values] for values in self._started())

    def get_inputs(self) -> list[Value]:
        return self._inputs

    def get_outputs(self) -> list[Value]:
        return self._outputs

    def run(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """Return the outputs. Raise what ONNX Runtime does, or its RuntimeException where the process dies."""
        if self._process is None:
            self._started()
        found: list[Any] = self._asked((list(names), dict(inputs)))
        return found

    def _started(self) -> Any:
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self._asked((None, self._arguments))

    def _asked(self, question: Any) -> Any:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            pickle.dump(question, process.stdin, protocol=5)
            process.stdin.flush()
            kind, answer = pickle.load(process.stdout)  # noqa: S301  # what our own process wrote
        except (EOFError, BrokenPipeError) as error:
            raise state.RuntimeException(f"its process ended by {_ending(self._ended())}") from error
        if kind:
            raise getattr(state, kind)(answer)
        return answer

    def _ended(self) -> int:
        """Let the process go, which ends by itself then, and return how it did; 0 where there is none."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for file in (process.stdin, process.stdout):
            if file is not None:
                with suppress(BrokenPipeError):  # of what it was still to read
                    file.close()
        return process.wait()

    def __del__(self) -> None:
        self._ended()


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve() -> None:
    """Open a session and run it, as standard input asks; what ONNX Runtime raises is answered by its name."""
    from relaxc.service.frontend.onnx.sessions import open_here, runtime_errors

    replies, sys.stdout = sys.stdout.buffer, sys.stderr
    session: Any = None
    while True:
        try:
            first, second = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our parent
        except EOFError:
            return
        try:
            if session is None:
                session = open_here(**second)
                values = session.get_inputs(), session.get_outputs()
                answer: Any = [[(value.name, value.type) for value in each] for each in values]
            else:
                answer = [np.asarray(value) for value in session.run(first, second)]
            reply = "", answer
        except runtime_errors() as error:
            reply = type(error).__name__, str(error)
        pickle.dump(reply, replies, protocol=5)
        replies.flush()


if __name__ == "__main__":
    _serve()
