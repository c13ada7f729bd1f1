// Plans: answered, not answered and why, and how fast.

import { fillTable, make, setText } from "../dom.js";
import { count, duration, percent, share } from "../format.js";

export function plansSection() {
  const summary = make("p", { className: "summary" });
  const table = make("table", { className: "rows", id: "plans" });
  const element = make("div", { className: "card" }, make("h2", {}, "Plans"), summary, table);
  const draw = ({ decisions: it }) => {
    const unanswered = it.num_missed + it.num_invalid;
    const answered = share(it.num_decisions, it.num_decisions + unanswered);
    setText(summary, `Answered: ${percent(answered, 2)} of the plan requests. A step without a plan in time runs by the fallback; no request notices.`);
    fillTable(table, ["since the executor attached", ""], rows(it).map(([label, value, name]) => [label, cell(value, name)]));
  };
  return { element, draw };
}

// [label, text or number, name for those who read the page by program]
function rows(it) {
  return [
    ["answered", it.num_decisions, "num_decisions"],
    ["overtaken by a newer request", it.num_missed, "num_missed"],
    ["refused as impossible", it.num_invalid, "num_invalid"],
    ["policy raised", it.num_policy_errors, "num_policy_errors"],
    ["reads of shared memory repeated", it.num_torn_reads, "num_torn_reads"],
    ["half of the plans take at most", duration(quantile(it.latency_s, 0.5)), "latency_p50"],
    ["99 in a hundred take at most", duration(quantile(it.latency_s, 0.99)), "latency_p99"],
  ];
}

function cell(value, name) {
  const isNumber = typeof value === "number";
  const data = make("data", { value: String(value) }, isNumber ? count(value) : value);
  data.dataset.name = name;
  const place = make("td", { className: "number" });
  place.append(data);
  return place;
}

/** The upper bound of the bucket in which that share is reached. */
function quantile({ bounds, counts }, wanted) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  let seen = 0;
  for (const [index, bound] of bounds.entries()) {
    seen += counts[index];
    if (total > 0 && seen >= wanted * total) return bound;
  }
  return null;
}
