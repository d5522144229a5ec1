// What a machine can do at most: measured by a bench, or nominal by the target's vectors.

const GHZ = 3;
const MIB = 1 << 20;

/** The peak of what an artifact is for: a GPU's is in its manifest, a CPU's is nominal. Null where nothing says it. */
export function peakOf({ target, passes }) {
  return passes?.peak || nominalPeak(target);
}

/**
 * A CPU's nominal peak at 3 GHz, as schedules/hardware.py has it: two multiply-adds of a whole vector a cycle and core
 * (one of 128 bits), and 32, 8 and 4 bytes a cycle and core from L2, L3 and memory. Null for a GPU.
 */
function nominalPeak({ kind, cores, vector_bits: bits }) {
  if (kind !== "llvm") return null;
  const rate = (bytesPerCycle) => cores * bytesPerCycle * GHZ;
  return {
    nominal: true,
    gflops: cores * (bits / 32) * 2 * (bits > 128 ? 2 : 1) * GHZ,
    levels: [
      { name: "L2", size_bytes: cores * MIB, read_gbps: rate(32) },
      { name: "L3", size_bytes: 32 * MIB, read_gbps: rate(8) },
      { name: "memory", size_bytes: null, read_gbps: rate(4) },
    ],
  };
}

/** The least time of a call, {ms, bound}: its arithmetic at the peak, or its bytes from the first level with room. */
export function limitOf(peak, flops, bytes, dtype) {
  if (!peak || typeof flops !== "number" || typeof bytes !== "number") return null;
  const level = peak.levels.find(({ size_bytes: size }) => size === null || size >= bytes) || peak.levels.at(-1);
  const [compute, memory] = [flops / gflopsOf(peak, dtype) / 1e6, bytes / level.read_gbps / 1e6];
  return compute >= memory ? { ms: compute, bound: "compute" } : { ms: memory, bound: level.name };
}

/** A GPU multiplies some dtypes faster than others, and a kernel of the rest is bound by its bytes. */
function gflopsOf(peak, dtype) {
  return peak.by_dtype ? peak.by_dtype[(dtype || "").split("+")[0]] || Infinity : peak.gflops;
}

/** Where the numbers come from, for people. */
export function peakText(peak) {
  if (!peak) return "This machine's peak is not known.";
  if (peak.source) return `Peak of ${peak.machine} by its ${peak.source}; the roof is that of float16.`;
  if (peak.nominal) return `Nominal peak of the target: its vectors and cores at ${GHZ} GHz.`;
  return `Measured peak of ${peak.machine}, ${peak.threads} threads.`;
}
