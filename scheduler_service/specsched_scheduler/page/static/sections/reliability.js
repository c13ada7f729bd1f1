// Reliability: what was observed where so much was predicted.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { Chart } from "../chart.js";
import { count, percent } from "../format.js";

export function reliabilityChart() {
  const chart = new Chart({
    title: "Reliability of the confidences",
    x: { label: "predicted survival", range: [0, 1] },
    y: { label: "observed", range: [0, 1] },
    empty: "No draft was verified yet.",
    series: [
      { label: "as it should be", colour: "grey", dash: "dotted", digits: 2 },
      { label: "all positions", colour: "blue", mark: "dot", digits: 3 },
    ],
  });
  chart.draw = ({ confidences }) => {
    const bins = pooled(confidences.positions);
    if (!bins.length) return chart.update(null, "");
    const diagonal = [[0, 1], [0, 1]];
    const observed = [bins.map((each) => each.predicted), bins.map((each) => each.observed)];
    chart.update(uPlot.join([diagonal, observed]), summary(confidences, bins));
  };
  return chart;
}

/** The ten bins over all positions, weighted by their drafts; those with at least one. */
function pooled(positions) {
  const bins = [];
  for (const each of positions.flatMap((position) => position.bins)) {
    if (each.num_drafts < 1) continue;
    const bin = (bins[Math.min(9, Math.floor(each.predicted * 10))] ??= { drafts: 0, predicted: 0, observed: 0 });
    bin.drafts += each.num_drafts;
    bin.predicted += each.num_drafts * each.predicted;
    bin.observed += each.num_drafts * each.observed;
  }
  return bins
    .filter(Boolean)
    .map((bin) => ({ drafts: bin.drafts, predicted: bin.predicted / bin.drafts, observed: bin.observed / bin.drafts }));
}

function summary(confidences, bins) {
  const errors = confidences.positions.filter((each) => each.error !== null);
  const drafts = count(bins.reduce((sum, each) => sum + each.drafts, 0));
  if (!errors.length) return `Of about ${drafts} drafts of late: too few for an error (1,000 for a position).`;
  const worst = errors.reduce((one, other) => (other.error > one.error ? other : one));
  return `Of about ${drafts} drafts of late. Largest calibration error: ${percent(worst.error)}, at position ${worst.position}.`;
}
