// What the lines and marks of a chart mean, with their values where the pointer is.

import { make, setText } from "./dom.js";
import { decimal } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const DASH_LENGTHS = { solid: "", dashed: "5 3", dotted: "2 2" };

export class Legend {
  #values;
  #entries;

  /** series: as a chart has them. isTime: without a pointer the newest values are told. */
  constructor(series, isTime) {
    this.#values = series.map(() => make("span", { className: "at" }));
    this.#entries = series.map((each, index) => make("li", {}, sample(each), ` ${each.label} `, this.#values[index]));
    this.element = make("ul", { className: "legend" }, ...this.#entries);
    this.show = (columns, row) => {
      for (const [index, { digits = 1 }] of series.entries()) {
        const column = columns[index + 1];
        const known = column.filter(isKnown);
        this.#entries[index].hidden = known.length === 0;
        const atRest = isTime || known.length === 1 ? decimal(known.at(-1), digits) : "";
        setText(this.#values[index], row === null ? atRest : decimal(column[row], digits));
      }
    };
  }
}

const isKnown = (value) => value !== null && value !== undefined;

function sample({ colour, dash = "solid", line = "line", mark, size = 6 }) {
  const svg = shape("svg", { viewBox: "0 0 24 12", class: `sample ${colour}`, "aria-hidden": "true" });
  if (line !== "marks") svg.append(shape("path", { d: "M0 6H24", "stroke-dasharray": DASH_LENGTHS[dash] }));
  if (mark) svg.append(shape("circle", { cx: 12, cy: 6, r: Math.min(4.5, 1 + size / 4), class: mark }));
  return svg;
}

function shape(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
