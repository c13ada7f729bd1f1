// Seconds of a history as columns over time. Pure.

import { share } from "./format.js";

const MIN_SECONDS = 60;

/** A row for each second that is over, empty where nothing happened: lines break there. */
export function everySecond(seconds, nowS, numSeconds) {
  const last = Math.floor(nowS) - 1;
  const begin = Math.max(last - numSeconds + 1, Math.min(seconds[0]?.time_s ?? last, last - MIN_SECONDS));
  const byTime = new Map(seconds.map((each) => [each.time_s, each]));
  return Array.from({ length: last - begin + 1 }, (_, index) => ({ time_s: begin + index, ...byTime.get(begin + index) }));
}

/** part / whole of each row. */
export const ratios = (rows, part, whole) => rows.map((row) => share(row[part], row[whole]));

/** The sum of a field over the rows of the last so many seconds. */
export function sumOf(seconds, field, nowS, windowS) {
  return seconds.reduce((sum, each) => (each.time_s > nowS - windowS ? sum + each[field] : sum), 0);
}
