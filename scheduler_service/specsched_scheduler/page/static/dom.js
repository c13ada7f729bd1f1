// Elements without markup in strings.

/** An element with properties, and children that are elements or text. */
export function make(tag, properties = {}, ...children) {
  const { dataset = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
}

/** Set text only where it differs: what is announced is what changed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table with one head; values are text, numbers, or cells. */
export function fillTable(table, head, rows) {
  const cell = (tag, value) =>
    value instanceof Element
      ? value
      : make(tag, { className: typeof value === "number" ? "number" : "" }, String(value ?? "–"));
  table.replaceChildren(
    make("thead", {}, make("tr", {}, ...head.map((each) => make("th", { scope: "col" }, each)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((each) => cell("td", each))))),
  );
}
