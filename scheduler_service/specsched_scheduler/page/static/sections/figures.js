// Numbers at a glance.

import { make, setText } from "../dom.js";
import { count, decimal, percent, share } from "../format.js";
import { sumOf } from "../history.js";

const WINDOW_S = 30;

// [label, executor and state -> [value, note]]
const FIGURES = [
  ["Batch", ({ decisions }, recent) => [decimal(share(recent("num_requests"), recent("num_decisions"))), `requests per step; newest ${count(decisions.newest?.num_requests)}`]],
  ["Decisions", (_, recent) => [decimal(recent("num_decisions") / WINDOW_S, 0), "per second"]],
  ["Budget", ({ decisions }, recent) => [percent(share(recent("budget"), recent("num_draft_tokens")), 0), `of the drafts; newest ${count(decisions.newest?.budget)} of ${count(decisions.newest?.num_draft_tokens)}`]],
  ["Speed-up", (_, recent) => [ratio(share(recent("plain_ms"), recent("measured_ms"))), "against no drafts, by the cost curve"]],
  ["Accepted", ({ confidences: it }) => [percent(share(it.num_accepted, it.num_judged), 0), "of verified drafts, since it attached"]],
  ["Draft length", ({ decisions, max_draft_tokens: most }) => [count(decisions.newest?.next_draft_tokens), `asked for next, of at most ${most}`]],
];

const ratio = (value) => (value === null ? "–" : `${decimal(value, 2)}×`);

export function figuresSection(section) {
  const tiles = FIGURES.map(([label, read]) => {
    const value = make("p", { className: "value" });
    const note = make("p", { className: "note" });
    section.append(make("div", { className: "card" }, make("p", { className: "label" }, label), value, note));
    return { read, value, note };
  });
  return (executor, state) => {
    const { seconds } = executor.decisions;
    const recent = (field) => sumOf(seconds, field, state.time_s, WINDOW_S);
    for (const { read, value, note } of tiles) {
      const [text, remark] = read(executor, recent);
      setText(value, text);
      setText(note, remark);
    }
  };
}
