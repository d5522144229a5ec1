"""CUDA texts run on the CPU: the launch of a `TextKernel` with its threads as fibers."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from tvm import tirx

from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.ir import tir

__all__ = ["at_sizes", "run"]

_HERE = Path(__file__).parent
_LAUNCH = """
static void* const* given;
static void one_thread() {
  NAME((void*)shared_of[current->cta]%s);
  current->done = true;
  yield();
}
extern "C" int run(void* const* pointers) {
  constexpr int THREADS = %d, CLUSTER = %d, STACK = 1 << 16;
  given = pointers;
  blockDim.x = THREADS;
  for (int first = 0; first < %d; first += CLUSTER) {
    std::vector<std::vector<float>> memory(CLUSTER, std::vector<float>(%d / 4, NAN));
    shared_of.clear();
    for (auto& each : memory) shared_of.push_back((char*)each.data());
    block_barriers.assign(CLUSTER, Barrier{THREADS});
    warp_barriers.assign(CLUSTER * THREADS / 32, Barrier{32});
    cluster_barrier = Barrier{CLUSTER * THREADS};
    slots.assign(CLUSTER * THREADS, 0);
    std::vector<Fiber> fibers(CLUSTER * THREADS);
    std::vector<char> stacks((size_t)STACK * fibers.size());
    for (int at = 0; at < (int)fibers.size(); at++) {
      Fiber& fiber = fibers[at];
      fiber.at = at;
      fiber.cta = at / THREADS;
      fiber.thread.x = at %% THREADS;
      fiber.block.x = first + fiber.cta;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks.data() + (size_t)STACK * at;
      fiber.context.uc_stack.ss_size = STACK;
      makecontext(&fiber.context, one_thread, 0);
    }
    for (bool left = true; left;) {
      left = false;
      if (++waits > 1000) return 1;  // every thread waits
      for (Fiber& fiber : fibers)
        if (!fiber.done) {
          left = true;
          if (fiber.at / 32 == %d && waits < 5) continue;  // the others go on as far as they can
          current = &fiber;
          swapcontext(&scheduler, &fiber.context);
        }
    }
    waits = 0;
  }
  return 0;
}
"""

_MULTIPLY = re.compile(
    r"DEV void multiply\(float \(&d\)\[\d+\], uint64_t a, uint64_t b, int adds\) \{\n(.*?)\n}\n", re.DOTALL
)
_ARRIVE = re.compile(r"DEV void copies_arrive\(uint32_t bar\) \{.*?\n}\n", re.DOTALL)
"""What `simulated.h` has."""


def _product(found: re.Match[str]) -> str:
    """The product of 64 rows that `simulated.h` has, in the place of the instruction."""
    head, dtype = found[0][: found.start(1) - found.start()], "__nv_bfloat16" if ".bf16." in found[0] else "__half"
    return f"{head}  product<{dtype}>(d, a, b, adds);\n}}\n"


def at_sizes(kernel: TextKernel, sizes: Mapping[str, int]) -> tuple[TextKernel, list[int]]:
    """The launch where the variables of these names have these values, and the sizes that it passes on."""

    def value(size: object) -> int:
        known = {var: tirx.const(sizes[var.name], "int64") for var in tir.variables(size)}
        return int(tir.simplify(tir.substitute(size, known)))

    grid = kernel.grid if isinstance(kernel.grid, int) else value(kernel.grid)
    return replace(kernel, grid=grid), [value(size) for size in kernel.sizes]


def run(kernel: TextKernel, arrays: list[np.ndarray], folder: Path, late: int = -1, sizes: Sequence[int] = ()) -> None:
    """Run `kernel` on `arrays`, which are in the order of its pointers and are written in place; `sizes` stand behind.

    The warp `late` of each cluster goes on only when no other can.
    """
    hopper = text_of("relaxc.schedules.cuda.common", "hopper.cuh")
    assert not kernel.maps and kernel.source.startswith(hopper)
    values = hopper[hopper.index("// ---- values") :].replace("#endif", "")
    for name, exact in (("exp2_fast", "exp2f(x)"), ("reciprocal_fast", "1.f / x")):
        (line,) = (line for line in values.splitlines() if line.startswith(f"DEV float {name}("))
        values = values.replace(line, f"DEV float {name}(float x) {{ return {exact}; }}")
    ampere = text_of("relaxc.schedules.cuda.common", "ampere.cuh")
    between = ampere[ampere.index("// ---- between lanes") :].replace("#endif", "")
    text = kernel.source.removeprefix(hopper)
    text = f"namespace ampere {{\n{between}{text.removeprefix(ampere)}" if text.startswith(ampere) else text
    text = _MULTIPLY.sub(_product, _ARRIVE.sub("", text)).replace("NAME", "kernel")
    pointers = "".join(f", given[{index}]" for index in range(len(arrays)))
    pointers += "".join(f", {size}" for size in sizes)
    launch = _LAUNCH % (pointers, kernel.threads, kernel.cluster, kernel.grid, kernel.shared_bytes, late)
    extremes = text_of("relaxc.schedules.cuda.common", "extremes.cuh")
    source = (_HERE / "simulated.h").read_text() + extremes + values + text + launch.replace("NAME", "kernel")
    library = folder / f"{sha256(source.encode()).hexdigest()[:16]}.so"
    flags = ["-x", "c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", str(library), "-"], input=source.encode(), check=True)
    held = [np.require(array, requirements=["C", "W", "A"]) for array in arrays]
    addresses = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
    assert ctypes.CDLL(str(library)).run(addresses) == 0, "every thread waits"
