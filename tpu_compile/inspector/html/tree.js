// The modules as a tree of rows; a module's rows are made when it is opened.

function treeRow(tag, node, name, line) {
  const part = data.root[mainMeasure] ? node[mainMeasure] / data.root[mainMeasure] : 0;
  return make(tag, { class: "row", title: line ? `${summary(node)}, ${line}` : summary(node) },
    make("span", { class: "name" }, name, line ? make("small", { class: "code" }, line) : null),
    make("span", { class: "number ops" }, `${whole(node.ops)} op${node.ops === 1 ? "" : "s"}`),
    make("span", { class: "share" },
      make("i", {}, make("b", { style: { width: `${100 * part}%` } })),
      make("span", {}, percent(part))),
    make("span", { class: "number" }, size(node.memory_bytes)));
}

// Opens as many levels as make no long list.
const MOST_ROWS = 24;
function rowsWithin(module, levels) {
  if (!levels) return 1;
  return module.modules.reduce((sum, child) => sum + rowsWithin(child, levels - 1), 1 + module.own.length);
}
function levelsToOpen() {
  let levels = 1;
  while (levels < 12 && rowsWithin(data.root, levels + 1) <= MOST_ROWS) levels += 1;
  return levels;
}

function treeNode(module, levels) {
  const details = make("details", {}, treeRow("summary", module, module.name, ""));
  const inside = make("div");
  const fill = () => {
    if (!details.open || inside.childElementCount) return;
    const heaviest = [...module.own].sort((a, b) => b[mainMeasure] - a[mainMeasure]);
    inside.append(
      ...module.modules.map((child) => treeNode(child, levels - 1)),
      ...heaviest.map((op) =>
        treeRow("div", op, make("span", { class: "code" }, op.op), op.line)));
  };
  details.append(inside);
  details.open = levels > 0;
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function drawTree() {
  byId("modules-tree").append(treeNode(data.root, levelsToOpen()));
  byId("modules-note").textContent =
    `Ops are nodes of the functional ATen graphs; the bar is the share of ` +
    `${measures[mainMeasure].title}; the last column is what the instructions read and write in ` +
    `${memoryName}, whole tiles counted. ` +
    (data.totals.cycles === null ? "Estimated cycles: not available for this target. " : "") +
    "A fusion counts as one op; what the compiler puts in counts for the op that it serves.";
}
