// Shapes of inputs, as the command line's --shape takes them.

/** Lines like `x=1,3,224,224` as dims by input name; a name in place of a size stays open. Throws for what is none. */
export function parseShapes(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map(parseShape));
}

function parseShape(line) {
  const at = line.indexOf("=");
  if (at < 1) throw new Error(`“${line}” is not NAME=DIMS, like x=1,3,224,224`);
  const dims = line.slice(at + 1).split(",").map((dim) => dim.trim()).filter(Boolean);
  return [line.slice(0, at).trim(), dims.map((dim) => (/^\d+$/.test(dim) ? Number(dim) : dim))];
}
