// Lanes for a graph whose nodes are in order, one a row: the lines of `git log --graph`, for values.

/**
 * `reads[row]` has the rows that a row reads. Gives the lane of each row, and how many lanes there are.
 *
 * A value stays in its lane until its last reader, who takes over the lowest lane that ends there.
 */
export function assignLanes(reads) {
  const lastReader = reads.map((_, row) => row);
  reads.forEach((sources, row) => sources.forEach((source) => (lastReader[source] = row)));
  const held = [];
  const lanes = reads.map((sources, row) => {
    const ending = sources.filter((source) => lastReader[source] === row);
    for (const lane of held.keys()) if (ending.includes(held[lane])) held[lane] = null;
    const free = held.indexOf(null);
    const lane = free === -1 ? held.length : free;
    held[lane] = lastReader[row] > row ? row : null;
    return lane;
  });
  return { lanes, width: held.length };
}
