// Plans: on time or not and why, answered or not and why, and how fast.

import { fillTable, make, setText } from "../dom.js";
import { count, duration, percent } from "../format.js";

const REASONS = {
  late: "late",
  no_scheduler: "from nobody, none was followed",
  torn: "torn in memory",
  stale_source: "of stale confidences",
  wrong_epoch: "of an earlier attachment",
  impossible: "impossible",
};

export function plansSection() {
  const summary = make("p", { className: "summary" });
  const table = make("table", { className: "rows", id: "plans" });
  const element = make("div", { className: "card" }, make("h2", {}, "Plans on time and fallbacks"), summary, table);
  const draw = ({ decisions, plan_outcomes: outcomes }) => {
    setText(summary, onTime(outcomes));
    const rows = [...steps(outcomes), ...requests(decisions)];
    fillTable(table, ["", "so far"], rows.map(([label, value, name]) => [label, cell(value, name)]));
  };
  return { element, draw };
}

function onTime(outcomes) {
  if (!outcomes) return "The executor does not tell how many steps had their plan in time.";
  const fallbacks = Object.values(outcomes.num_fallback).reduce((sum, each) => sum + each, 0);
  const asked = outcomes.num_planned + fallbacks;
  if (!asked) return "No step had drafts yet.";
  return `${percent(outcomes.num_planned / asked, 2)} of ${count(asked)} steps with drafts had a plan in time, of whichever scheduler. The others ran by the fallback; no request notices.`;
}

// [label, text or number, name for those who read the page by program]

function steps(outcomes) {
  if (!outcomes) return [];
  const fallbacks = Object.entries(outcomes.num_fallback).filter(([, number]) => number > 0);
  return [
    ["steps with a plan in time", outcomes.num_planned, "num_planned"],
    ...fallbacks.map(([why, number]) => [`fell back: plan ${REASONS[why] ?? why}`, number, `fallback_${why}`]),
  ];
}

function requests(it) {
  return [
    ["plan requests answered here", it.num_decisions, "num_decisions"],
    ["overtaken by a newer request", it.num_missed, "num_missed"],
    ["refused as impossible", it.num_invalid, "num_invalid"],
    ["policies failed at", it.num_policy_errors, "num_policy_errors"],
    ["half are answered within", duration(quantile(it.latency_s, 0.5)), "latency_p50"],
    ["99 in a hundred within", duration(quantile(it.latency_s, 0.99)), "latency_p99"],
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
