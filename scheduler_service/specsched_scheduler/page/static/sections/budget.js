// Budget: over time beside the batch, and by batch size.

import { Chart } from "../chart.js";
import { count, percent, share } from "../format.js";
import { everySecond, ratios } from "../history.js";

const DRAFTS = { label: "drafts present", colour: "orange", dash: "dashed" };
const BUDGET = { label: "budget", colour: "blue" };

export function budgetOverTime() {
  const chart = new Chart({
    title: "Budget over time, against the batch",
    x: { label: "time", isTime: true },
    y: { label: "per step" },
    empty: "No budget was decided yet.",
    series: [
      { ...DRAFTS, mark: "ring", size: 6 },
      { ...BUDGET, mark: "dot", size: 4 },
      { label: "requests", colour: "grey", dash: "dotted" },
    ],
  });
  chart.draw = (executor, state) => {
    const { seconds, budget, num_draft_tokens: drafts } = executor.decisions;
    if (!seconds.length) return chart.update(null, "");
    const rows = everySecond(seconds, state.time_s, state.num_seconds);
    const perStep = (field) => ratios(rows, field, "num_decisions");
    const columns = [rows.map((row) => row.time_s), perStep("num_draft_tokens"), perStep("budget"), perStep("num_requests")];
    chart.update(columns, `Drafts to verify at most, means per second. So far ${percent(share(budget, drafts))} of ${count(drafts)} drafts.`);
  };
  return chart;
}

export function budgetBySize() {
  const chart = new Chart({
    title: "Budget by batch size",
    x: { label: "requests in the step", range: padded },
    y: { label: "tokens per step" },
    empty: "No budget was decided yet.",
    series: [
      { ...DRAFTS, mark: "ring", size: 9 },
      { ...BUDGET, mark: "dot", size: 6 },
    ],
  });
  chart.draw = (executor) => {
    const { sizes } = executor.decisions;
    if (!sizes.length) return chart.update(null, "");
    const requests = sizes.map((each) => each.num_requests);
    const columns = [requests, ratios(sizes, "num_draft_tokens", "num_decisions"), ratios(sizes, "budget", "num_decisions")];
    chart.update(columns, `Means since the executor attached, for batches of ${requests[0]} to ${requests.at(-1)}.`);
  };
  return chart;
}

const padded = (_, low, high) => [Math.max(0, low - 1), high + 1];
