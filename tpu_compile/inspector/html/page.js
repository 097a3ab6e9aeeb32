// Draws every section of the page.

function drawHeader() {
  const { totals, programs } = data;
  byId("model").textContent = data.model;
  byId("subject").textContent =
    `${data.training ? `training step with ${data.training}` : "one call"} on ${data.target}` +
    (data.chip ? `, one device of ${data.chip.product}` : "");
  const available = totals.available_bytes;
  const entries = [
    ["floating-point operations", quantity(totals.flops), ""],
    ["bytes accessed", size(totals.bytes_accessed), "as XLA counts"],
    ["estimated cycles", totals.cycles === null ? missing : quantity(totals.cycles), totals.cycles === null ? "" : "relative, no time"],
    [`peak ${memoryName}`, size(totals.peak_bytes), available === null ? "no limit" : `${share(totals.peak_bytes, available)} of ${size(available)}`],
    ["of the chip's peak, at most", totals.peak_share === null ? missing : percent(totals.peak_share), totals.bound ? `bound by ${totals.bound}` : ""],
    ["programs", whole(programs.length), `${whole(totals.runs)} run${totals.runs === 1 ? "" : "s"}`],
    ["ATen ops", whole(totals.ops), `${whole(rows.length)} instructions`],
    ["fallbacks", whole(data.fallbacks.length), ""],
    ["graph breaks", whole(data.graph_breaks.length), ""],
  ];
  byId("totals").append(...entries.map(([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", { class: value === missing ? "missing" : null }, value, more ? make("small", {}, more) : ""))));
  byId("versions").append(...data.versions.map(([name, version]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, version))));
}

function drawEager() {
  const listed = (title, items) =>
    items.length ? [make("h3", {}, title), make("ul", {}, ...items.map((item) => make("li", {}, ...item)))] : [];
  const parts = [
    ...listed("Ops that run in eager PyTorch", data.fallbacks.map((one) =>
      [make("code", {}, one.op), ` at ${one.where}: ${one.why}`])),
    ...listed("Where Dynamo broke the graph", data.graph_breaks.map((reason) => [reason])),
  ];
  byId("eager-list").append(...(parts.length ? parts : ["None: every op is compiled, in whole graphs."]));
}

function drawPrograms() {
  const header = ["", "program", "first line", "runs", "FLOP", "accessed", "FLOP/B", "cycles",
    "arguments", "outputs", "aliased", "temporaries", "code", "lowering", "compile"];
  byId("programs-table").append(table(header, data.programs.map((one, number) => [
    String(number + 1), one.title, one.where || "-", whole(one.runs), quantity(one.flops), size(one.bytes_accessed),
    one.bytes_accessed ? (one.flops / one.bytes_accessed).toFixed(1) : "-",
    one.cycles === null ? "-" : whole(one.cycles),
    ...[one.arguments, one.outputs, one.aliased, one.temporaries, one.code].map(size),
    seconds(one.lowering_seconds), seconds(one.compile_seconds),
  ])));
}

drawHeader();
startTable();
drawTree();
startMap();
drawRoofline();
drawRuns();
drawLive();
drawTimes();
drawEager();
drawPrograms();
page.dataset.ready = "yes";
