// One chart in a card: title, a sentence, the plot, the same numbers as a table.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { fillTable, make, setText } from "./dom.js";
import { clock } from "./format.js";
import { Legend } from "./legend.js";

const HEIGHT = 210;
const MAX_TABLE_ROWS = 60;
const MAX_MARKS = 70;
const DASHES = { solid: undefined, dashed: [7, 4], dotted: [2, 3] };
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

const charts = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((each) => each.redraw()));
const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => target.chart.fit()));

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Marks of a series; drawn along a line, or alone. Shapes tell series apart as well as colours. */
function points(shape, colour, size) {
  if (shape === undefined) return { show: false };
  return { show: true, size, width: 2, stroke: colour, fill: shape === "ring" ? ink("card") : colour, filter: notTooMany };
}

/** Of a long series only the values that no line reaches. */
function notTooMany(plot, series) {
  const column = plot.data[series];
  const has = (row) => column[row] !== null && column[row] !== undefined;
  const known = [...column.keys()].filter(has);
  return known.length <= MAX_MARKS ? known : known.filter((row) => !has(row - 1) && !has(row + 1));
}

const PATHS = {
  line: undefined,
  stairs: uPlot.paths.stepped({ align: -1 }),
  marks: () => null,
};

export class Chart {
  #options;
  #plot = null;
  #columns = null;
  #legend;
  #elements;

  /**
   * options: title; x: {label, isTime, range}; y: {label}; y2: the same, optional; empty: what to
   * say without data; series: [{label, colour, line, dash, mark, size, digits, scale}].
   */
  constructor(options) {
    this.#options = options;
    const id = `chart-${charts.size}`;
    const summary = make("p", { className: "summary", id });
    const plot = make("div", { className: "plot" });
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${options.title}, a chart`);
    plot.setAttribute("aria-describedby", id);
    const empty = make("p", { className: "empty" }, options.empty);
    const table = make("table", { className: "rows" });
    const details = make("details", {}, make("summary", {}, "As a table"), make("div", {}, table));
    details.addEventListener("toggle", () => this.#fillTable());
    this.#legend = new Legend(options.series, options.x.isTime);
    const legend = this.#legend.element;
    const title = make("figcaption", {}, make("h2", {}, options.title));
    this.#elements = { summary, plot, empty, legend, table, details };
    this.element = make("figure", { className: "card chart" }, title, summary, plot, empty, legend, details);
    plot.chart = this;
    resized.observe(plot);
    charts.add(this);
    this.update(null, "");
  }

  /** columns: x and one for each series, or null for no data; summary: a sentence. */
  update(columns, summary, emptyText = this.#options.empty) {
    const { summary: line, plot, empty, legend, details } = this.#elements;
    this.#columns = columns;
    setText(line, summary);
    setText(empty, emptyText);
    empty.hidden = columns !== null;
    plot.hidden = legend.hidden = details.hidden = columns === null;
    if (columns === null) return this.#drop();
    if (this.#plot === null) this.redraw();
    else this.#plot.setData(columns);
    this.#tellValues();
    this.#fillTable();
  }

  /** Anew: for other colours. */
  redraw() {
    this.#drop();
    const { plot } = this.#elements;
    if (this.#columns === null || plot.clientWidth === 0) return;
    this.#plot = new uPlot(this.#uplotOptions(plot.clientWidth), this.#columns, plot);
  }

  fit() {
    const width = this.#elements.plot.clientWidth;
    if (this.#plot === null) this.redraw();
    else if (width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #drop() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #uplotOptions(width) {
    const { x, y, y2, series } = this.#options;
    const axis = { stroke: ink("muted"), font: FONT, labelFont: FONT, labelSize: 18, ticks: { stroke: ink("line") } };
    const grid = { stroke: ink("line"), width: 1 };
    const axes = [
      { ...axis, grid, label: x.isTime ? undefined : x.label, size: 32, values: x.isTime ? timeTicks : undefined },
      { ...axis, grid, label: y.label, size: 48 },
    ];
    if (y2) axes.push({ ...axis, label: y2.label, size: 48, side: 1, scale: "y2", grid: { show: false } });
    return {
      width,
      height: HEIGHT,
      scales: { x: { time: Boolean(x.isTime), range: x.range }, y: { range: y.range ?? fromZero }, y2: { range: fromZero } },
      axes,
      cursor: { drag: { x: false, y: false }, points: { size: 8 } },
      legend: { show: false },
      hooks: { setCursor: [() => this.#tellValues()] },
      series: [{}, ...series.map(drawn)],
    };
  }

  #tellValues() {
    this.#legend.show(this.#columns, this.#plot?.cursor.idx ?? null);
  }

  #fillTable() {
    const { details, table } = this.#elements;
    if (!details.open || this.#columns === null) return;
    const { x, series } = this.#options;
    const [first, ...rest] = this.#columns;
    const rows = first.map((value, row) => [x.isTime ? clock(value) : value, ...rest.map((column) => rounded(column[row]))]);
    const told = rows.filter((row) => row.slice(1).some((value) => value !== null));
    const kept = x.isTime ? told.slice(-MAX_TABLE_ROWS).reverse() : told;
    fillTable(table, [x.label, ...series.map((each) => each.label)], kept);
  }
}

const fromZero = (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? high * 1.08 : 1];
const timeTicks = (_, ticks) => ticks.map((each) => clock(each).slice(0, each % 60 ? 8 : 5));
const rounded = (value) => (value === null || value === undefined ? null : Number(value.toPrecision(4)));

function drawn({ colour, line = "line", dash = "solid", mark, size = 7, scale = "y" }) {
  const stroke = ink(colour);
  return { scale, stroke, width: 2, dash: DASHES[dash], paths: PATHS[line], points: points(mark, stroke, size) };
}
