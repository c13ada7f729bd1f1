// Lanes: which schedulers the executor has, whom it follows, and a button to have it follow another.

import { fillTable, make, setText } from "../dom.js";
import { count } from "../format.js";

const MARKS = { active: "▶ active", shadow: "◌ shadow", draining: "▽ draining", suspended: "‖ suspended" };

export function lanesSection() {
  const summary = make("p", { className: "summary" });
  const table = make("table", { className: "rows", id: "lanes" });
  const outcome = make("p", { className: "summary" });
  outcome.setAttribute("role", "status");
  const element = make("div", { className: "card" }, make("h2", {}, "Lanes"), summary, make("div", { className: "table" }, table), outcome);
  let drawn = "";
  const draw = (executor, state) => {
    setText(summary, introduction(executor, state));
    const now = JSON.stringify([executor.lanes, state.promotable]);
    if (now === drawn) return; // a button that is about to be pressed stays where it is
    drawn = now;
    const rows = executor.lanes.map((lane) => [
      `${lane.scheduler}${lane.scheduler === state.name ? " (this one)" : ""}`,
      lane.version,
      lane.policy,
      role(lane, state, (text) => setText(outcome, text)),
    ]);
    fillTable(table, ["scheduler", "version", "policy", "role"], rows);
  };
  return { element, draw };
}

function introduction(executor, state) {
  if (!executor.lanes.length) return "The executor does not tell which schedulers it has.";
  const how = state.promotable.length ? "" : " To change that: specsched promote NAME.";
  const whom = executor.active_scheduler || "nobody";
  return `${executor.name} has ${count(executor.lanes.length)} attached and follows ${whom}.${how}`;
}

function role(lane, state, tell) {
  const place = make("td", {}, MARKS[lane.role] ?? lane.role);
  if (lane.role === "active" || !state.promotable.includes(lane.scheduler)) return place;
  const press = make("button", { type: "button", ariaLabel: `Promote ${lane.scheduler}` }, "Promote");
  press.addEventListener("click", async () => {
    if (!confirm(`Have executors follow ${lane.scheduler} from the next step on?`)) return;
    press.disabled = true;
    tell(`Promoting ${lane.scheduler} …`);
    tell(await promote(lane.scheduler));
    press.disabled = false;
  });
  place.append(make("br"), press);
  return place;
}

async function promote(scheduler) {
  try {
    const answer = await fetch("/page/promote", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Specsched-Page": "1" },
      body: JSON.stringify({ scheduler }),
    });
    if (!answer.ok) return `Not promoted: ${await answer.text()}`;
    const { executors } = await answer.json();
    return executors.map(told).join(" ");
  } catch (error) {
    return `Not promoted: ${error.message}`;
  }
}

const told = ({ executor, done, reason, active_scheduler: active, step_id: step }) =>
  done ? `${executor} follows ${active} from step ${step} on.` : `${executor} did not: ${reason}.`;
