// What the other scripts share: the data, elements made of text only, and numbers for reading.

const page = document.documentElement;
window.addEventListener("error", (event) => {
  page.dataset.error = event.message;
  const failure = document.getElementById("failure");
  failure.textContent = `This page could not draw all of itself: ${event.message}`;
  failure.hidden = false;
});

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const memoryName = data.chip ? "HBM" : "memory";

// Names come from a stranger's model: they are only ever text, never markup.
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const make = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(byId("drawing").namespaceURI, tag), attributes, children);

function scaled(value, base, units, digits) {
  let place = 0;
  while (Math.abs(value) >= base && place < units.length - 1) {
    value /= base;
    place += 1;
  }
  return `${value.toFixed(place ? digits : 0)} ${units[place]}`.trim();
}
const size = (bytes) => scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], 1);
const quantity = (count, unit = "") =>
  scaled(count, 1000, ["", "k", "M", "G", "T", "P"].map((prefix) => prefix + unit), 1);
const whole = (count) => count.toLocaleString("en-US");
const seconds = (time) => (time < 1 ? `${(time * 1000).toFixed(0)} ms` : `${time.toFixed(1)} s`);
function percent(part) {
  if (part === 0) return "0%";
  if (part < 0.001) return "<0.1%";
  return `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)}%`;
}
const share = (value, total) => (total ? percent(value / total) : "-");
const missing = "not available";

// The ways to weigh modules and ops; the TPU compiler alone estimates cycles.
const measures = {
  cycles: { title: "estimated cycles", text: whole },
  memory_bytes: { title: `bytes read and written in ${memoryName}`, text: size },
  instructions: { title: "instructions", text: whole },
  ops: { title: "ATen ops", text: whole },
};
if (data.totals.cycles === null) delete measures.cycles;
const mainMeasure = Object.keys(measures)[0];

function summary(node) {
  const parts = Object.entries(measures).map(
    ([name, measure]) =>
      `${measure.text(node[name])} ${measure.title} (${share(node[name], data.root[name])})`,
  );
  return parts.join(", ");
}

function table(header, rows) {
  const numeric = header.map((_, column) => 
    rows.every((row) => /^[-<\d]/.test(row[column])) && rows.some((row) => /\d/.test(row[column])));
  const cell = (tag, text, column) =>
    make(tag, { class: numeric[column] ? "number" : "long" }, text);
  return make("table", {},
    make("thead", {}, make("tr", {}, ...header.map((text, column) => cell("th", text, column)))),
    make("tbody", {}, ...rows.map((row) =>
      make("tr", {}, ...row.map((text, column) => cell("td", text, column))))));
}

function legend(id, entries) {
  byId(id).replaceChildren(...entries.map(([kind, text]) =>
    make("li", {}, make("span", { class: `swatch ${kind}` }), text)));
}

// Draws again whenever the width changes, so that text keeps its size.
function onWidth(element, drawAt) {
  let drawn = 0;
  const redraw = () => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== drawn) drawAt((drawn = width));
  };
  redraw();
  new ResizeObserver(() => window.requestAnimationFrame(redraw)).observe(element);
}
