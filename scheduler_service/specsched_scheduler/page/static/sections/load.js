// Load: how many requests a step has, and how many steps there are.

import { Chart } from "../chart.js";
import { decimal } from "../format.js";
import { everySecond, ratios } from "../history.js";

export function loadChart() {
  const chart = new Chart({
    title: "Load",
    x: { label: "time", isTime: true },
    y: { label: "requests" },
    y2: { label: "decisions / s" },
    empty: "No step was decided yet.",
    series: [
      { label: "requests per step", colour: "blue", mark: "dot", size: 4 },
      { label: "decisions per second", colour: "orange", dash: "dashed", scale: "y2", digits: 0 },
    ],
  });
  chart.draw = (executor, state) => {
    const { seconds } = executor.decisions;
    if (!seconds.length) return chart.update(null, "");
    const rows = everySecond(seconds, state.time_s, state.num_seconds);
    const batch = ratios(rows, "num_requests", "num_decisions");
    const rate = rows.map((row) => row.num_decisions ?? 0);
    const summary = `Means per second. At most ${decimal(Math.max(...batch), 1)} requests per step and ${Math.max(...rate)} decisions per second of late.`;
    chart.update([rows.map((row) => row.time_s), batch, rate], summary);
  };
  return chart;
}
