// Numbers as people read them. What is not known is a dash.

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const times = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 12,345 */
export const count = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);
/** 12.3, with so many digits behind the point. */
export const decimal = (value, digits = 1) => (isKnown(value) ? value.toFixed(digits) : UNKNOWN);
/** 97.5 % */
export const percent = (share, digits = 1) => (isKnown(share) ? `${(share * 100).toFixed(digits)} %` : UNKNOWN);
/** 23:59:59, of Unix seconds. */
export const clock = (seconds) => times.format(new Date(seconds * 1000));
/** 58 µs or 1.2 ms, of seconds. */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  return seconds < 1e-3 ? `${decimal(seconds * 1e6, 0)} µs` : `${decimal(seconds * 1e3, 1)} ms`;
}
/** part / of, null where that is nothing. */
export const share = (part, of) => (of > 0 ? part / of : null);
