// The cost staircase, with the newest step on it.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { Chart } from "../chart.js";
import { count, decimal } from "../format.js";

export function costChart() {
  const chart = new Chart({
    title: "Cost staircase and the chosen point",
    x: { label: "rows in the step", range: (_, low, high) => [0, high * 1.03] },
    y: { label: "ms" },
    empty: "No cost model: the executor profiled fewer than three sizes.",
    series: [
      { label: "in graphs", colour: "blue", line: "stairs", digits: 2 },
      { label: "without a graph", colour: "blue", dash: "dashed", digits: 2 },
      { label: "as profiled", colour: "grey", line: "marks", mark: "dot", size: 5, digits: 2 },
      { label: "without drafts", colour: "orange", line: "marks", mark: "dot", size: 9, digits: 2 },
      { label: "all drafts", colour: "orange", line: "marks", mark: "ring", size: 13, digits: 2 },
      { label: "chosen", colour: "good", line: "marks", mark: "ring", size: 19, digits: 2 },
    ],
  });
  chart.draw = ({ cost, choice }) => {
    if (cost.model_state !== "ok" || !cost.sizes.length) return chart.update(null, "");
    // Up to the first size beyond the graphs a step costs what that size does, then what lies between.
    const first = cost.sizes.findLastIndex((size) => size <= cost.capture_limit) + 1;
    const last = first > 0 ? first + 1 : 0;
    const curves = [
      [cost.sizes.slice(0, last), cost.ms.slice(0, last)],
      [cost.sizes.slice(first), cost.ms.slice(first)],
      [cost.sizes, cost.profiled_ms],
    ];
    const marks = ["without_drafts", "all_drafts", "chosen"].map((name) => (choice ? [[choice[name].num_rows], [choice[name].ms]] : [[], []]));
    chart.update(uPlot.join([...curves, ...marks]), summary(cost, choice));
  };
  return chart;
}

function summary(cost, choice) {
  const source = cost.is_corrected ? "Profiled, corrected by what steps took." : "As profiled at the start.";
  if (!choice) return `${source} Nothing was chosen yet.`;
  const { chosen, without_drafts: plain, all_drafts: all } = choice;
  return `Newest step${all.num_rows > plain.num_rows ? " with drafts" : ""}: ${count(chosen.num_rows)} rows for ${decimal(chosen.ms, 2)} ms, of ${count(plain.num_rows)} without and ${count(all.num_rows)} with all drafts. ${source}`;
}
