// How far drafts survive, as predicted and as it came.

import { Chart } from "../chart.js";
import { count, percent } from "../format.js";

export function survivalChart() {
  const chart = new Chart({
    title: "Survival by draft position",
    x: { label: "draft position", range: (_, low, high) => [low - 0.3, high + 0.3] },
    y: { label: "share accepted up to it", range: [0, 1] },
    empty: "No draft was verified yet.",
    series: [
      { label: "predicted", colour: "orange", dash: "dashed", mark: "ring", size: 9, digits: 3 },
      { label: "observed", colour: "blue", mark: "dot", digits: 3 },
    ],
  });
  chart.draw = ({ confidences }) => {
    const known = confidences.positions.filter((each) => each.num_drafts > 0);
    if (!known.length) return chart.update(null, "");
    const column = (field) => known.map((each) => each[field]);
    const { num_expected: expected, num_accepted: accepted, num_judged: judged } = confidences;
    const summary = `Of ${count(judged)} verified drafts ${count(accepted)} were accepted (${percent(accepted / judged)}), ${count(expected)} were expected.`;
    chart.update([column("position"), column("predicted"), column("observed")], summary);
  };
  return chart;
}
