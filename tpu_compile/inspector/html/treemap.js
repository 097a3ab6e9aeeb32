// Cost as areas: modules within modules as far as there is room, ops as cells.

const MOST_CELLS = 300;
const HEADER = 18;
const MOST_LEVELS = 8;

// Squarified layout (Bruls, Huizing, van Wijk 2000): rows of cells that are as square as can be.
function squarified(items, box) {
  const total = items.reduce((sum, item) => sum + item.value, 0);
  const scale = total ? (box.width * box.height) / total : 0;
  const cells = [];
  let { left, top, width, height } = box;
  const worst = (row, area, side) => {
    const [most, least] = [row[0].value * scale, row[row.length - 1].value * scale];
    return Math.max((side * side * most) / (area * area), (area * area) / (side * side * least));
  };
  for (let start = 0; start < items.length; ) {
    const side = Math.min(width, height);
    let end = start + 1;
    let area = items[start].value * scale;
    while (end < items.length) {
      const more = area + items[end].value * scale;
      if (worst(items.slice(start, end + 1), more, side) > worst(items.slice(start, end), area, side)) break;
      area = more;
      end += 1;
    }
    const thick = side ? area / side : 0;
    let along = 0;
    for (const item of items.slice(start, end)) {
      const long = thick ? (item.value * scale) / thick : 0;
      cells.push(width >= height
        ? { item, left, top: top + along, width: thick, height: long }
        : { item, left: left + along, top, width: long, height: thick });
      along += long;
    }
    if (width >= height) [left, width] = [left + thick, width - thick];
    else [top, height] = [top + thick, height - thick];
    start = end;
  }
  return cells;
}

const map = { trail: [data.root], measure: mainMeasure, width: 0, height: 0 };

// A module that holds nothing but another is shown as one: `encoder.layers`.
function mapModule(node) {
  let name = node.name;
  while (!node.own.length && node.modules.length === 1) {
    [node] = node.modules;
    name += `.${node.name}`;
  }
  return { node, name, module: true };
}

function mapItems(module) {
  const items = [
    ...module.modules.map(mapModule),
    ...module.own.map((node) => ({ node, name: node.op, module: false })),
  ].map((item) => ({ ...item, path: module.path, value: item.node[map.measure] }));
  const sorted = items.filter((item) => item.value > 0).sort((a, b) => b.value - a.value);
  const rest = sorted.slice(MOST_CELLS);
  if (!rest.length) return sorted;
  const sum = (name) => rest.reduce((total, item) => total + item.node[name], 0);
  const node = Object.fromEntries(Object.keys(measures).map((name) => [name, sum(name)]));
  return [...sorted.slice(0, MOST_CELLS),
    { node, name: `${rest.length} others`, path: module.path, value: node[map.measure], other: true }];
}

function mapCell({ item, left, top, width, height }, isFrame) {
  const { node } = item;
  const where = item.path ? `${item.path}, ` : "";
  const detail = `${where}${item.name}: ${summary(node)}${node.line ? `, ${node.line}` : ""}`;
  const show = () => { byId("map-detail").textContent = detail; };
  const act = () => {
    if (item.module) openModule(node);
    else if (!item.other) search(`${item.path} ${node.op}`);
  };
  const kind = item.module ? (isFrame ? "frame open" : "frame") : node.kind || "other";
  const shown = width > 34 && height > 15;
  return make("button", {
    type: "button", class: kind, tabindex: -1, "aria-label": detail,
    style: {
      left: `${(100 * left) / map.width}%`, top: `${(100 * top) / map.height}%`,
      width: `${(100 * width) / map.width}%`, height: `${(100 * height) / map.height}%`,
    },
    onfocus: show, onmouseenter: show, onclick: act,
  }, shown ? make("span", {}, item.name.replace(/^aten\.|\.default$/g, "")) : "",
  shown && !isFrame && width > 46 && height > 34 ? make("span", {}, share(node[map.measure], data.root[map.measure])) : "");
}

function mapCells(module, box, level) {
  return squarified(mapItems(module), box).flatMap((cell) => {
    if (cell.width < 2 || cell.height < 2) return [];
    const isFrame = cell.item.module && level < MOST_LEVELS && cell.width > 60 && cell.height > HEADER + 24;
    if (!isFrame) return [mapCell(cell, false)];
    const inside = {
      left: cell.left + 3, top: cell.top + HEADER, width: cell.width - 6, height: cell.height - HEADER - 3,
    };
    return [mapCell(cell, true), ...mapCells(cell.item.node, inside, level + 1)];
  });
}

function drawMap() {
  const box = byId("map-cells");
  const current = map.trail[map.trail.length - 1];
  [map.width, map.height] = [box.clientWidth, box.clientHeight];
  const cells = mapCells(current, { left: 0, top: 0, width: map.width, height: map.height }, 1);
  if (cells.length) cells[0].tabIndex = 0;
  box.replaceChildren(...cells);
  byId("map-detail").textContent = cells.length
    ? "Point at a cell for its numbers. A module opens; an op lists its instructions."
    : "Nothing here has a cost of this kind.";
  const crumbs = map.trail.map((module, depth) =>
    make("button", { type: "button", onclick: () => openTrail(map.trail.slice(0, depth + 1)) }, module.name));
  byId("map-path").replaceChildren(...crumbs.flatMap((crumb, depth) => (depth ? [" / ", crumb] : [crumb])));
}

function openTrail(trail) {
  map.trail = trail;
  drawMap();
}

// Returns the modules from `from` down to `module`, which lies within it.
function trailTo(module, from) {
  if (from === module) return [from];
  for (const child of from.modules) {
    const trail = trailTo(module, child);
    if (trail) return [from, ...trail];
  }
  return null;
}

function openModule(module) {
  openTrail(trailTo(module, data.root));
  byId("map-cells").querySelector("button")?.focus();
}

function moveInMap(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const cells = [...byId("map-cells").children];
  const now = cells.indexOf(document.activeElement);
  if (!step || now < 0) return;
  event.preventDefault();
  const next = cells[(now + step + cells.length) % cells.length];
  cells[now].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function startMap() {
  const choice = byId("map-measure");
  choice.append(...Object.entries(measures).map(([name, measure]) => make("option", { value: name }, measure.title)));
  choice.addEventListener("change", () => {
    map.measure = choice.value;
    drawMap();
  });
  byId("map-cells").addEventListener("keydown", moveInMap);
  legend("map-legend", [
    ["product", "products and convolutions"], ["reduction", "reductions and norms"],
    ["elementwise", "elementwise"], ["movement", "data movement"], ["other", "put in by the compiler"],
  ]);
  onWidth(byId("map-cells"), drawMap);
}
