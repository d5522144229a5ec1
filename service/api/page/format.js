// Numbers, sizes and times for people.

const dash = "–";

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three significant digits, without an exponent between 0.001 and a million. */
export function number(value, digits = 3) {
  if (!isNumber(value)) return dash;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1))))));
}

/** 2 370 000 → 2.37 M. */
export function count(value) {
  if (!isNumber(value)) return typeof value === "string" ? value : dash;
  for (const [limit, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= limit) return number(value / limit) + unit;
  }
  return number(value);
}

/** 594 000 → 594 kFLOP. */
export function flops(value) {
  return `${count(value)}${value < 1e3 ? " " : ""}FLOP`;
}

/** Bytes in binary units. */
export function bytes(value) {
  if (!isNumber(value)) return typeof value === "string" ? value : dash;
  let unit = 0;
  for (; value >= 1024 && unit < 4; unit += 1) value /= 1024;
  return `${number(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** Seconds as 12 ms, 3.4 s or 2 min 5 s. */
export function seconds(value) {
  if (!isNumber(value)) return dash;
  if (value > 0 && value < 1e-6) return `${number(value * 1e9)} ns`;
  if (value < 1e-3) return `${number(value * 1e6)} µs`;
  if (value < 1) return `${number(value * 1e3)} ms`;
  if (value < 90) return `${number(value)} s`;
  const whole = Math.round(value);
  if (whole < 5400) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}

/** How long from one ISO time to another, or to now. */
export function elapsed(from, to) {
  if (!from) return dash;
  return seconds(Math.max(0, ((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1e3));
}

/** An ISO time as this browser's clock shows it. */
export function clock(iso) {
  if (!iso) return dash;
  const time = new Date(iso);
  const sameDay = time.toDateString() === new Date().toDateString();
  return sameDay ? time.toLocaleTimeString() : time.toLocaleString();
}

export function percent(share) {
  return isNumber(share) ? `${number(share * 100, 2)} %` : dash;
}

export function shape(dims) {
  return Array.isArray(dims) ? (dims.length ? dims.join(" × ") : "scalar") : dash;
}

/** The start of a digest. */
export function short(digest) {
  return typeof digest === "string" ? digest.slice(0, 12) : dash;
}
