// The verdict in words.

import { make, setText } from "../dom.js";

const MARKS = { good: "✓ ", bad: "✕ ", even: "= ", waiting: "… " };

/** Text in which commands are between backticks. */
function setWords(element, text) {
  if (element.textContent === text.replaceAll("`", "")) return;
  const parts = text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
  element.replaceChildren(...parts);
}

export function verdictSection(section) {
  section.className = "card";
  const mark = make("span", { className: "mark", ariaHidden: "true" });
  const words = make("span");
  const headline = make("p", { className: "headline" }, mark, words);
  headline.setAttribute("role", "status");
  const evidence = make("p", { className: "evidence" });
  const why = make("p", { className: "why" });
  const list = make("ul");
  section.append(headline, evidence, why, list);
  return (verdict) => {
    section.dataset.tone = verdict.tone;
    setText(mark, MARKS[verdict.tone]);
    setText(words, verdict.headline);
    setWords(evidence, verdict.evidence);
    setText(why, verdict.why);
    if (list.dataset.told === verdict.cautions.join("\n")) return;
    list.dataset.told = verdict.cautions.join("\n");
    list.replaceChildren(...verdict.cautions.map((each) => make("li", {}, each)));
  };
}
