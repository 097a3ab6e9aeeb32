// The table of instructions: sorted, searched and shown by pages of rows.

const PAGE = 100;
const { columns, rows } = data.instructions;
const column = Object.fromEntries(columns.map((name, place) => [name, place]));
const valueOf = (row, name) => row[column[name]];
const wasteOf = (row) => valueOf(row, "padded_bytes") - valueOf(row, "bytes");

const FIELDS = [
  { title: "program", of: (row) => valueOf(row, "program") + 1, number: true },
  { title: "instruction", of: (row) => valueOf(row, "name"), code: true },
  { title: "opcode", of: (row) => valueOf(row, "opcode"), code: true },
  { title: "module", of: (row) => valueOf(row, "module") },
  { title: "op", of: (row) => valueOf(row, "op"), code: true },
  { title: "line", of: (row) => valueOf(row, "line") },
  { title: "result", of: (row) => valueOf(row, "shape"), code: true },
  { title: "runs", of: (row) => valueOf(row, "runs"), number: true },
  { title: "cycles", of: (row) => valueOf(row, "cycles") ?? -1, number: true, text: (n) => (n < 0 ? "-" : whole(n)) },
  { title: memoryName, of: (row) => valueOf(row, "memory_bytes"), number: true, text: size },
  { title: "tile waste", of: wasteOf, number: true,
    text: (waste, row) => (waste > 0 ? `${size(waste)} (${share(waste, valueOf(row, "padded_bytes"))})` : "-") },
];
const list = { found: rows, first: 0, sort: data.totals.cycles === null ? 9 : 8, down: true };
let haystacks = null;

function searched(words) {
  if (!words.length) return rows;
  haystacks ??= rows.map((row) =>
    FIELDS.slice(1, 7).map((field) => field.of(row)).join("\n").toLowerCase());
  return rows.filter((_, place) => words.every((word) => haystacks[place].includes(word)));
}

function sorted(found) {
  const { of } = FIELDS[list.sort];
  const order = list.down ? -1 : 1;
  return [...found].sort((a, b) => {
    const [one, other] = [of(a), of(b)];
    return one === other ? 0 : one < other ? -order : order;
  });
}

function showRows() {
  const shown = list.found.slice(list.first, list.first + PAGE);
  byId("rows").tBodies[0].replaceChildren(...shown.map((row) => make("tr", {}, ...FIELDS.map((field) =>
    make("td", { class: `${field.number ? "number" : "long"} ${field.code ? "code" : ""}` },
      String(field.text ? field.text(field.of(row), row) : field.of(row)))))));
  const of = list.found.length === rows.length ? "" : `, of ${whole(rows.length)} in all`;
  byId("shown").textContent = shown.length
    ? `${whole(list.first + 1)} to ${whole(list.first + shown.length)} of ${whole(list.found.length)}${of}`
    : `none of ${whole(rows.length)}`;
  byId("back").disabled = list.first === 0;
  byId("forward").disabled = list.first + PAGE >= list.found.length;
}

function find() {
  list.found = sorted(searched(byId("search").value.toLowerCase().split(/\s+/).filter(Boolean)));
  list.first = 0;
  showRows();
}

// From elsewhere on the page: what to look for, and go there.
function search(words) {
  byId("search").value = words.trim();
  find();
  byId("instructions").scrollIntoView();
  byId("search").focus({ preventScroll: true });
}

function turn(pages) {
  list.first = Math.max(list.first + pages * PAGE, 0);
  showRows();
}

function sortBy(place) {
  list.down = list.sort === place ? !list.down : Boolean(FIELDS[place].number);
  list.sort = place;
  showHeader();
  find();
}

function showHeader() {
  byId("rows").tHead.replaceChildren(make("tr", {}, ...FIELDS.map((field, place) => {
    const isSorted = place === list.sort;
    const mark = isSorted ? (list.down ? " \u25be" : " \u25b4") : "";
    return make("th", {
      class: field.number ? "number" : "",
      "aria-sort": isSorted ? (list.down ? "descending" : "ascending") : null,
    }, make("button", { type: "button", onclick: () => sortBy(place) }, field.title + mark));
  })));
}

function startTable() {
  let waiting = 0;
  byId("search").addEventListener("input", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(find, 120);
  });
  byId("back").addEventListener("click", () => turn(-1));
  byId("forward").addEventListener("click", () => turn(1));
  byId("instructions-note").textContent =
    `Cycles are of one run${data.totals.cycles === null ? `, ${missing} for this target` : ""}. ` +
    `${memoryName}: bytes that one run reads and writes there. Tile waste: what the tiles of the result ` +
    `hold beside its elements. Instructions inside fusions are not listed.`;
  showHeader();
  find();
}
