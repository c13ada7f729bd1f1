// Predicted against measured step time.

import { Chart } from "../chart.js";
import { count, decimal, percent, share } from "../format.js";
import { everySecond, ratios } from "../history.js";

export function timesChart() {
  const chart = new Chart({
    title: "Step time, predicted and measured",
    x: { label: "time", isTime: true },
    y: { label: "ms per step" },
    empty: "No step was decided here and reported yet.",
    series: [
      { label: "predicted", colour: "orange", dash: "dashed", mark: "ring", size: 6, digits: 2 },
      { label: "measured", colour: "blue", mark: "dot", size: 4, digits: 2 },
    ],
  });
  chart.draw = (executor, state) => {
    const { seconds } = executor.decisions;
    const times = executor.step_times;
    if (!times.num_steps) {
      const isFollowed = executor.role === "" || executor.role === "active";
      return chart.update(null, "", isFollowed ? undefined : "Another scheduler is followed: its steps are not judged here.");
    }
    const rows = everySecond(seconds, state.time_s, state.num_seconds);
    const perStep = (field) => ratios(rows, field, "num_judged_steps");
    const error = share(times.measured_s - times.predicted_s, times.predicted_s);
    const sign = error > 0 ? "+" : "";
    const summary = `Since the executor attached, over ${count(times.num_steps)} steps: measured ${decimal((times.measured_s / times.num_steps) * 1e3, 2)} ms, ${sign}${percent(error)} of predicted.`;
    chart.update([rows.map((row) => row.time_s), perStep("predicted_ms"), perStep("measured_ms")], summary);
  };
  return chart;
}
