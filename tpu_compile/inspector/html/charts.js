// Plots of memory and cost, in SVG at the width that there is, and the times of compilation.

function svg(width, height, label, ...children) {
  return shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...children);
}
const text = (x, y, content, attributes = {}) => shape("text", { x, y, ...attributes }, content);
const line = (x1, y1, x2, y2, kind) => shape("line", { x1, y1, x2, y2, class: kind });
const named = (element, title) => filled(element, {}, [shape("title", {}, title)]);

// --- roofline -----------------------------------------------------------------------------------

function drawRoofline() {
  const plot = byId("roofline-plot");
  const points = data.programs
    .map((program, number) => ({ program, number, at: program.flops / program.bytes_accessed }))
    .filter((point) => point.at > 0 && Number.isFinite(point.at))
    .sort((a, b) => a.at - b.at);
  if (!data.chip) {
    plot.textContent = `Peaks of ${data.target}: ${missing}.`;
    return;
  }
  const { peak_flops: peak, bandwidth, product } = data.chip;
  const ridge = peak / bandwidth;
  const ats = [ridge, ...points.map((point) => point.at)];
  const low = Math.floor(Math.log10(Math.min(...ats) / 2));
  const high = Math.ceil(Math.log10(Math.max(...ats) * 2));
  const bottom = Math.floor(Math.log10(bandwidth * 10 ** low));
  const top = Math.ceil(Math.log10(peak * 1.2));
  byId("roofline-note").textContent =
    `Across: XLA's floating-point operations for each byte that it counts as accessed. Up: the most ` +
    `operations a second that ${product} allows for that, by its peak of bfloat16 products ` +
    `(${quantity(peak, "FLOP/s")}) and its HBM bandwidth (${quantity(bandwidth, "B/s")}); both axes are ` +
    `logarithmic. Nothing is measured: each point is a program (numbers as under Programs) at its limit. ` +
    `Left of ${ridge.toFixed(0)} FLOP/B memory is the limit. The HLO has no operations by instruction, so ` +
    `fusions are not shown.`;
  onWidth(plot, (width) => {
    const [left, right, height, base] = [62, 14, 320, 272];
    const x = (at) => left + ((Math.log10(at) - low) / (high - low)) * (width - left - right);
    const y = (rate) => base - ((Math.log10(rate) - bottom) / (top - bottom)) * (base - 14);
    const roof = (at) => Math.min(peak, at * bandwidth);
    const parts = [];
    const step = Math.ceil((high - low) / Math.max(Math.floor((width - left) / 70), 2));
    for (let power = low; power <= high; power += step) {
      parts.push(line(x(10 ** power), 14, x(10 ** power), base, "grid"),
        text(x(10 ** power), base + 17, power < 0 ? String(10 ** power) : quantity(10 ** power).replace(".0", ""),
          { "text-anchor": "middle" }));
    }
    for (let power = bottom; power <= top; power += 1) {
      parts.push(line(left, y(10 ** power), width - right, y(10 ** power), "grid"),
        text(left - 6, y(10 ** power) + 4, quantity(10 ** power).replace(".0", ""), { "text-anchor": "end" }));
    }
    parts.push(
      text((left + width - right) / 2, height - 8, "FLOP for each byte", { "text-anchor": "middle", class: "faint" }),
      text(14, (14 + base) / 2, "FLOP/s at most", {
        "text-anchor": "middle", class: "faint", transform: `rotate(-90 14 ${(14 + base) / 2})`,
      }),
      shape("polyline", { class: "roof", points: [10 ** low, ridge, 10 ** high].map((at) => `${x(at)},${y(roof(at))}`).join(" ") }));
    let [last, below] = [-Infinity, 0];
    for (const { program, number, at } of points) {
      below = x(at) - last < 22 ? below + 1 : 0;
      if (!below) last = x(at);
      const [across, up] = [x(at), y(roof(at))];
      const down = Math.min(up + 24 * below, base - 10);
      if (below) parts.push(line(across, up, across, down, "leader"));
      parts.push(named(shape("g", {}, shape("circle", { class: "dot", cx: across, cy: down, r: 10 }),
        text(across, down + 4, String(number + 1), { "text-anchor": "middle" })),
      `${number + 1}. ${program.title}: ${at.toFixed(1)} FLOP/B, at most ${quantity(roof(at), "FLOP/s")} (${percent(roof(at) / peak)} of the peak)`));
    }
    const label = `Roofline of ${product}. ` + points.map(({ program, at }) =>
      `${program.title}: ${at.toFixed(1)} FLOP a byte, ${percent(roof(at) / peak)} of the peak`).slice(0, 20).join("; ");
    plot.replaceChildren(svg(width, height, label, ...parts));
  });
}

// --- memory -------------------------------------------------------------------------------------

function memoryAxis(width, height, most, base) {
  const parts = [];
  const unit = 1024 ** Math.max(Math.floor(Math.log(most || 1) / Math.log(1024)), 0);
  const rough = most / unit / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough) * unit;
  for (let value = 0; value <= most; value += step) {
    const up = base - (value / most) * (base - 24);
    parts.push(line(64, up, width - 8, up, "grid"), text(58, up + 4, size(value).replace(".0", ""), { "text-anchor": "end" }));
  }
  return parts;
}

// The limit is drawn where it leaves the rest readable, else only told.
function limitLine(width, most, base) {
  const limit = data.totals.available_bytes;
  if (limit === null || limit > most) return [];
  const up = base - (limit / most) * (base - 24);
  return [line(64, up, width - 8, up, "limit"),
    text(width - 10, up - 5, `available: ${size(limit)}`, { "text-anchor": "end", class: "limit-text" })];
}

function highest(peak) {
  const limit = data.totals.available_bytes;
  return (limit !== null && limit < 8 * peak ? Math.max(limit, peak) : peak) * 1.06 || 1;
}

function limitNote(peak) {
  const limit = data.totals.available_bytes;
  if (limit === null) return "";
  const room = `Programs may use ${size(limit)} of ${memoryName}; the peak is ${size(peak)}, ${share(peak, limit)} of it.`;
  return limit > highest(peak) ? `${room} The limit is above the plot.` : room;
}

const PARTS = [["code", 5], ["others", 4], ["arguments", 1], ["outputs", 3], ["temporaries", 2]];
const PART_NAMES = {
  code: "code of all programs", others: "held for other programs", arguments: "arguments",
  outputs: "outputs", temporaries: "temporaries",
};

function drawRuns() {
  const plot = byId("runs-plot");
  const totals = data.runs.map((run) => PARTS.reduce((sum, [part]) => sum + run[part], 0));
  const peak = Math.max(0, ...totals);
  legend("runs-legend", PARTS.map(([part, color]) => [`k${color}`, PART_NAMES[part]]));
  byId("runs-note").textContent = `One bar a run of a program, in order (numbers as under Programs). ${limitNote(peak)}`;
  onWidth(plot, (width) => {
    const [height, base, most] = [260, 222, highest(peak)];
    const parts = memoryAxis(width, height, most, base);
    const wide = (width - 72) / Math.max(data.runs.length, 1);
    const bar = Math.max(Math.min(wide * 0.72, 90), 0.8);
    const every = Math.ceil(26 / wide);
    data.runs.forEach((run, number) => {
      let under = 0;
      const middle = 64 + wide * (number + 0.5);
      for (const [part, color] of PARTS) {
        const tall = (run[part] / most) * (base - 24);
        if (!run[part]) continue;
        under += tall;
        parts.push(named(shape("rect", { class: `cell f${color}`, x: middle - bar / 2, y: base - under, width: bar, height: tall }),
          `${data.programs[run.program].title}: ${PART_NAMES[part]} ${size(run[part])}, together ${size(totals[number])}`));
      }
      if (number % every === 0) parts.push(text(middle, base + 16, String(run.program + 1), { "text-anchor": "middle" }));
    });
    parts.push(...limitLine(width, most, base), line(64, base, width - 8, base, "axis"),
      text((64 + width) / 2, height - 5, "program", { "text-anchor": "middle", class: "faint" }));
    const label = `Memory of ${data.runs.length} runs of programs; the most is ${size(peak)}. ` +
      data.runs.slice(0, 20).map((run, number) => `${data.programs[run.program].title}: ${size(totals[number])}`).join("; ");
    plot.replaceChildren(svg(width, height, label, ...parts));
  });
}

function drawLive() {
  const { live, instructions, peak_bytes: peak, peak_at: at, largest } = data.liveness;
  if (!live.length) return;
  const { title } = data.programs[data.liveness.program];
  byId("live-title").textContent = `Live arrays in the largest program: ${title}`;
  byId("live-note").textContent =
    `Across: the schedule, ${whole(instructions)} instructions. Up: bytes in ${memoryName} of arrays between ` +
    `their definition and last use, whole tiles counted: an upper bound, since some results take the place of ` +
    `an operand. The most is ${size(peak)}, at instruction ${whole(at + 1)}. Code is not counted.`;
  byId("live-table").append(table(["live at the peak", "what", "bytes", "shape", "made (arguments: first read) by", "line"],
    largest.map((one) => [one.name, one.role, size(one.bytes), one.shape, one.op || "-", one.line || "-"])));
  onWidth(byId("live-plot"), (width) => {
    const [height, base, most] = [240, 202, highest(peak)];
    const wide = (width - 72) / live.length;
    const up = (bytes) => base - (bytes / most) * (base - 24);
    const steps = live.map((bytes, number) => `H${64 + wide * number}V${up(bytes)}H${64 + wide * (number + 1)}`);
    const peakX = 64 + (width - 72) * ((at + 0.5) / instructions);
    byId("live-plot").replaceChildren(svg(width, height,
      `Live bytes over the ${instructions} instructions of ${title}; the most is ${size(peak)} at instruction ${at + 1}`,
      ...memoryAxis(width, height, most, base),
      shape("path", { class: "area", d: `M64 ${base}${steps.join("")}V${base}Z` }),
      line(peakX, up(peak) - 4, peakX, up(peak) - 12, "axis"),
      text(Math.min(Math.max(peakX, 100), width - 60), up(peak) - 14, size(peak), { "text-anchor": "middle" }),
      ...limitLine(width, most, base), line(64, base, width - 8, base, "axis"),
      text(64, base + 16, "1"), text(width - 8, base + 16, whole(instructions), { "text-anchor": "end" }),
      text((64 + width) / 2, height - 5, "instruction of the schedule", { "text-anchor": "middle", class: "faint" })));
  });
}

// --- compile time -------------------------------------------------------------------------------

const MOST_TRACKS = 40;

function drawTimes() {
  const { programs } = data;
  const sum = (name) => programs.reduce((total, program) => total + program[name], 0);
  const total = data.capture_seconds + sum("lowering_seconds") + sum("compile_seconds") || 1;
  const track = (name, parts) => {
    const time = parts.reduce((all, part) => all + part.time, 0);
    const said = parts.map((part) => `${part.what} ${seconds(part.time)}`).join(", ");
    return [make("span", { class: "name" }, name),
      make("span", { class: "track", role: "img", "aria-label": said, title: said }, ...parts.map((part) =>
        make("i", { class: part.kind, style: { left: `${(100 * part.start) / total}%`, width: `${(100 * part.time) / total}%` } }))),
      make("span", { class: "number" }, seconds(time))];
  };
  let lowering = data.capture_seconds;
  let compiling = lowering + sum("lowering_seconds");
  const tracks = programs.map((program, number) => {
    const parts = [
      { what: "lowering", kind: "k2", start: lowering, time: program.lowering_seconds },
      { what: "compile", kind: "k1", start: compiling, time: program.compile_seconds },
    ];
    lowering += program.lowering_seconds;
    compiling += program.compile_seconds;
    return track(`${number + 1}. ${program.title}`, parts);
  });
  const rows = [track("Dynamo and AOTAutograd", [{ what: "capture", kind: "k3", start: 0, time: data.capture_seconds }]),
    ...tracks.slice(0, MOST_TRACKS)];
  byId("compile-rows").append(make("div", { class: "timeline" }, ...rows.flat()));
  byId("compile-note").textContent =
    `${seconds(total)} on the machine that made this page, one step after the other.` +
    (tracks.length > MOST_TRACKS ? ` The first ${MOST_TRACKS} of ${tracks.length} programs are shown.` : "");
  legend("compile-legend", [["k3", "capture"], ["k2", "lowering to StableHLO"], ["k1", "compile by XLA"]]);
}
