// The page of a scheduler: draws each look that the stream of events brings.

import { Connection } from "./connection.js";
import { make, setText } from "./dom.js";
import { clock } from "./format.js";
import { budgetBySize, budgetOverTime } from "./sections/budget.js";
import { costChart } from "./sections/cost.js";
import { figuresSection } from "./sections/figures.js";
import { lanesSection } from "./sections/lanes.js";
import { loadChart } from "./sections/load.js";
import { plansSection } from "./sections/plans.js";
import { reliabilityChart } from "./sections/reliability.js";
import { survivalChart } from "./sections/survival.js";
import { timesChart } from "./sections/times.js";
import { verdictSection } from "./sections/verdict.js";
import { shownExecutor } from "./state.js";

const byId = (id) => document.getElementById(id);

const drawVerdict = verdictSection(byId("verdict"));
const drawFigures = figuresSection(byId("figures"));
const details = [
  loadChart(),
  budgetOverTime(),
  budgetBySize(),
  costChart(),
  timesChart(),
  plansSection(),
  survivalChart(),
  reliabilityChart(),
  lanesSection(),
];
byId("details").append(...details.map((each) => each.element));

const picker = byId("executors");
const pick = picker.querySelector("select");
let pickedSlot = null;
let newest = null;
pick.addEventListener("change", () => {
  pickedSlot = Number(pick.value);
  draw(newest);
});

function draw(state) {
  newest = state;
  document.querySelector("main").hidden = false; // until now nothing is known, not even that nothing is
  document.title = `specsched ${state.name}`;
  setText(byId("name"), state.name);
  const executor = shownExecutor(state, pickedSlot);
  setText(byId("identity"), identity(state, executor));
  drawPicker(state, executor);
  drawVerdict(state.verdict ?? executor.verdict);
  const hasExecutor = executor !== null;
  for (const id of ["figures", "details"]) byId(id).hidden = !hasExecutor;
  if (!hasExecutor) return;
  drawFigures(executor, state);
  for (const each of details) each.draw(executor, state);
}

function identity(state, executor) {
  const frozen = state.is_learning_frozen ? " · learning is frozen" : "";
  const of = executor ? ` · ${executor.model}, drafts by ${executor.drafter || "nobody"}` : "";
  return `${state.version} · policy ${state.policy}${of}${frozen}`;
}

function drawPicker(state, executor) {
  picker.hidden = state.executors.length < 2;
  const wanted = state.executors.map((each) => `${each.slot}: ${each.name}`);
  if (pick.dataset.told !== wanted.join("\n")) {
    pick.dataset.told = wanted.join("\n");
    pick.replaceChildren(...state.executors.map((each, index) => make("option", { value: each.slot }, wanted[index])));
  }
  if (executor) pick.value = executor.slot;
}

const NOTICES = {
  lost: (at) => `Connection lost at ${at}: what is below is of then. Trying again.`,
  ended: (at) => `The scheduler ended at ${at}: what is below is of then. Waiting for it to come back.`,
  silent: (at) => `The scheduler answers, but has had nothing new to tell since ${at}.`,
  full: () => "This page is open too often: close one elsewhere. Trying again.",
};
const WORDS = { live: "Live", lost: "Connection lost", ended: "Scheduler ended", silent: "No news", full: "Refused" };

function drawConnection(word, since) {
  const at = clock(since.getTime() / 1000);
  byId("connection").dataset.state = word === "live" || word === "silent" ? word : "lost";
  setText(byId("connection"), WORDS[word]);
  const notice = byId("notice");
  notice.hidden = word === "live";
  setText(notice, NOTICES[word]?.(at) ?? "");
}

new Connection(draw, drawConnection).open();
