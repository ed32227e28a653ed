// Shows the nodes of a run, and the output and stacks of the chosen node's workers. It is loaded before page.js, whose
// stream calls it, and calls functions of page.js only later.
"use strict";

const MOST_CARDS = 256; // more nodes are small cells without text, in a block for each state or place
const MOST_OPEN = 1024; // most cells that are shown by default; in a larger run only those of blocks that need attention
const NO_PLACE = "no place given";
const TONES = document.body.dataset.tones.split(" "); // order of the blocks
const CALM = TONES.indexOf("calm"); // from here on no block needs attention

const cells = new Map(); // by the key of the node, or of the missing seat
const blocks = new Map(); // by state or place: { block, title, button, asked: true or false if the viewer has opened or folded it }
let isCompact = false;
let grouping = "rank"; // rank (only for cards), state or place
let hasPlaces = false;
let chosen = null;
let pointed = null; // the key of the cell under the pointer

function wordOf(node, key) {
  const quiet = (shown.quiet || {})[key];
  return quiet ? quiet.why : Object.keys(node.remarks || {})[0] || (node.state === "cordoned" ? keptOut(node) : node.state);
}

function keptOut(node) {
  // "excluded" or "cordoned"; empty if it is neither
  if (!node.cordon) return "";
  return node.cordon.excluded ? "excluded" : "cordoned";
}

function quietFor(quiet) {
  // without a limit the run waits for its agents
  return since(quiet.since) + (quiet.limit_s === undefined ? "" : ` of ${limit(Number(quiet.limit_s.toFixed(1)))}`);
}

function fillWord(key, cell) {
  const quiet = (shown.quiet || {})[key];
  const first = quiet ? `${cell.word} ${quietFor(quiet)}` : cell.word, second = keptOut(cell.node);
  const text = second && second !== cell.word ? `${first} · ${second}` : first;
  if (isCompact) cell.said = text;
  else fill(cell.children[1], text);
}

function drawNodes(run) {
  const nodes = shown.nodes || {}, missing = run.missing || {}, list = byId("nodes");
  const before = cells.size;
  chooseSize(Object.keys(nodes).length + Object.keys(missing).length > MOST_CARDS);
  drawGroupings(Object.values(nodes));
  let moved = changedNodes === null;
  for (const [key, cell] of cells) {
    if (!(key in nodes) && !(key.slice(1) in missing && key[0] === "m")) {
      cell.remove();
      cells.delete(key);
      if (chosen === key) choose(null);
    }
  }
  const keys = changedNodes || Object.keys(nodes);
  for (const key of keys) {
    if (nodes[key]) moved = drawCell(key, nodes[key], run) || moved;
  }
  for (const [rank, seat] of Object.entries(missing)) {
    moved = drawCell(`m${rank}`, { ...seat, state: "missing", group_rank: Number(rank) }, run) || moved;
  }
  changedNodes = new Set();
  if (moved || cells.size !== before) {
    arrangeNodes();
  }
  const counts = new Map();
  for (const cell of cells.values()) counts.set(cell.word, (counts.get(cell.word) || 0) + 1);
  const parts = [...counts].sort((one, other) => other[1] - one[1]);
  bar(byId("states"), grouping === "state" ? make("p") : byId("states-legend"), parts.map(([word, count]) => [word, count, `${count} ${word}`]));
  byId("nodes-first").hidden = !isCompact || !firstFailed();
}

const firstFailed = () => [...cells.values()].find((cell) => cell.dataset.mark);

function arrangeNodes() {
  const sorted = [...cells.values()].sort((one, other) => one.place - other.place || (one.name < other.name ? -1 : 1));
  if (grouping === "rank") arrange(byId("nodes"), sorted);
  else drawBlocks(byId("nodes"), sorted);
  if (chosen !== null && cells.has(chosen)) choose(chosen, false);
}

function drawGroupings(nodes) {
  // Places group nodes only if several nodes share one.
  const places = new Set(nodes.map((node) => node.place).filter(Boolean));
  hasPlaces = places.size > 0 && 2 * places.size <= nodes.length;
  byId("nodes-by-place").hidden = !hasPlaces;
  byId("nodes-by-rank").hidden = isCompact;
  byId("nodes-grouping").hidden = !isCompact && !hasPlaces;
  if (grouping === "place" && !hasPlaces) group(isCompact ? "state" : "rank");
}

function group(by) {
  grouping = byId("nodes-by").value = by;
  blocks.clear();
  changedNodes = null;
  ["nodes", "states-legend", "nodes-folds"].forEach((id) => byId(id).replaceChildren());
  byId("nodes").classList.toggle("blocks", by !== "rank");
  byId("nodes-fold").hidden = by === "rank";
}

function chooseSize(wanted) {
  // Use cells with text, or small ones.
  if (isCompact === wanted) return;
  isCompact = wanted;
  cells.clear();
  if (grouping !== "place") group(isCompact ? "state" : "rank");
  else group("place");
  byId("nodes").classList.toggle("many", isCompact);
  byId("nodes-says").hidden = !isCompact;
}

function arrange(parent, wanted) {
  // A child that stays in its place is not moved, so that it keeps the focus.
  const kept = new Set(wanted);
  [...parent.children].forEach((child) => kept.has(child) || child.remove());
  wanted.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] || null);
  });
}

const urgency = (word) => TONES.indexOf(toneOf(word));
const groupOf = (cell) => (grouping === "state" ? cell.word : cell.node.place || NO_PLACE);

function drawBlocks(list, sorted) {
  // Draw a block for each state, those that need attention first, or for each place. Its button folds it.
  const members = new Map();
  for (const cell of sorted) {
    const name = groupOf(cell);
    if (members.has(name)) members.get(name).push(cell);
    else members.set(name, [cell]);
  }
  for (const name of blocks.keys()) if (!members.has(name)) blocks.delete(name);
  const worst = new Map([...members].map(([name, inIt]) => [name, inIt.reduce((one, { word }) => (urgency(word) < urgency(one) ? word : one), inIt[0].word)]));
  const names = [...members.keys()].sort((one, other) => urgency(worst.get(one)) - urgency(worst.get(other)) || one.localeCompare(other, "en", { numeric: true }));
  let room = MOST_OPEN;
  for (const name of names) {
    const inIt = members.get(name), fold = blocks.get(name) || makeBlock(name);
    const fits = inIt.length <= room && (cells.size <= MOST_OPEN || urgency(worst.get(name)) < CALM);
    if (fold.asked === fits) fold.asked = undefined; // the same as the default
    fold.isOpen = fold.asked ?? fits;
    if (fold.isOpen) room -= inIt.length;
    drawBlock(fold, inIt, grouping === "state" ? `${inIt.length} ${name}` : `${name}: ${countsOf(inIt)}`, worst.get(name));
  }
  if (grouping === "place") names.sort((one, other) => (one === NO_PLACE) - (other === NO_PLACE) || one.localeCompare(other, "en", { numeric: true }));
  arrange(list, names.map((name) => blocks.get(name)).filter((fold) => fold.isOpen).map((fold) => fold.block));
  arrange(byId(grouping === "state" ? "states-legend" : "nodes-folds"), names.map((name) => blocks.get(name).button));
}

function drawBlock({ block, title, button, isOpen }, inIt, text, word) {
  fill(title, text);
  fill(toned(button, word), text);
  button.setAttribute("aria-expanded", String(isOpen));
  block.setAttribute("aria-label", text);
  arrange(block, isOpen ? [title, ...inIt] : []);
}

function countsOf(inIt) {
  const counts = new Map();
  for (const { word } of inIt) counts.set(word, (counts.get(word) || 0) + 1);
  return [...counts].sort(([one], [other]) => urgency(one) - urgency(other)).map(([word, count]) => `${count} ${word}`).join(", ");
}

function makeBlock(name) {
  const block = make("div", "block"), title = make("div", "title"), button = make("button", "badge fold");
  block.setAttribute("role", "group");
  title.setAttribute("aria-hidden", "true"); // the block has the same label
  button.type = "button";
  const fold = { block, title, button };
  button.addEventListener("click", () => {
    fold.asked = !fold.isOpen;
    arrangeNodes();
  });
  blocks.set(name, fold);
  return fold;
}

function point(key) {
  // Show the name of a small cell below all cells.
  pointed = key;
  const cell = cells.get(key) || cells.get(chosen);
  if (isCompact) fill(byId("nodes-says"), cell ? `${nameOf(cell.node)}: ${[cell.said, cell.more].filter(Boolean).join(", ")}` : "Point at a node to read its name.");
}

const nameOf = (node) => (node.group_rank === undefined ? node.node_id : `${node.group_rank} · ${node.node_id}`);
const keyOf = (cell) => cell.id.slice("node-".length);

function cellAt(event) {
  const cell = event.target.closest(".node");
  return cell ? keyOf(cell) : null;
}

function drawCell(key, node, run) {
  // Returns whether the cell may need another place.
  let cell = cells.get(key);
  if (!cell) {
    cell = make("div", "node");
    cell.id = `node-${key}`;
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-selected", "false");
    if (!isCompact) cell.append(...["name", "word", "more"].map((name) => make("span", name)));
    cells.set(key, cell);
  }
  const seated = node.group_rank !== undefined;
  const first = run.first_failure && run.first_failure.failure;
  const isFirst = first && first.singled_out && first.node_id === node.node_id;
  const place = seated ? node.group_rank : 1e9;
  const word = wordOf(node, key);
  const moved = cell.place !== place || cell.name !== node.node_id || (grouping !== "rank" && (cell.word !== word || (cell.node || {}).place !== node.place));
  cell.place = place;
  cell.name = node.node_id;
  cell.word = word;
  cell.node = node;
  const isInnocent = cell.word === "failed" && !node.failures; // its workers were stopped because another node failed
  toned(cell, isInnocent ? "" : cell.word);
  cell.dataset.seat = seated ? "own" : "none";
  if (isFirst) cell.dataset.mark = "first";
  else delete cell.dataset.mark;
  cell.more = isFirst ? `first failure: rank ${first.rank}` : node.failures ? plural(node.failures, "failure") : ranksOf(node);
  fillWord(key, cell);
  const title = isCompact ? [nameOf(node), cell.word, cell.more].filter(Boolean).join(", ") : node.node_id;
  if (cell.title !== title) cell.title = title; // the cell may be too narrow for the text
  if (isCompact) return moved;
  fill(cell.children[0], nameOf(node));
  fill(cell.children[2], cell.more);
  return moved;
}

function ranksOf(node) {
  if (node.first_rank === undefined) return "";
  const last = node.first_rank + node.local_world_size - 1;
  return last === node.first_rank ? `rank ${last}` : `ranks ${node.first_rank}–${last}`;
}

function choose(key, isAsked = true) {
  if (chosen !== null && cells.has(chosen)) cells.get(chosen).setAttribute("aria-selected", "false");
  chosen = key;
  const list = byId("nodes");
  const cell = key === null ? null : cells.get(key);
  if (cell) cell.setAttribute("aria-selected", "true");
  if (!cell || !cell.isConnected) list.removeAttribute("aria-activedescendant"); // the cell's block may be folded
  else {
    list.setAttribute("aria-activedescendant", cell.id);
    if (isAsked) cell.scrollIntoView({ block: "nearest" });
  }
  point(pointed);
  drawNode();
}

function drawNode() {
  const cell = chosen === null ? null : cells.get(chosen);
  byId("node").hidden = !cell;
  if (!cell) return;
  const { node, word } = cell, run = shown.run, quiet = (shown.quiet || {})[chosen];
  fill(byId("node-title"), node.node_id);
  byId("node-costs").href = nodePath(node.node_id);
  byId("node").querySelectorAll("button").forEach((button) => (button.dataset.node = node.node_id));
  const age = quiet ? since(quiet.heard_at) : `under ${limit(run.quiet_after_s)}`;
  facts(byId("node-facts"), [
    ["State", word], ["Group rank", node.group_rank], ["Ranks", ranksOf(node)], ["Workers", node.local_world_size],
    ["Address", node.addr], ["Place", node.place], ["Role", node.role], ["Failures", node.failures || (node.agent_id ? 0 : "")],
    ["Age of its lease", node.agent_id && run.ended_at === undefined ? `${age} of ${limit(run.lease_s)}` : ""],
    ["Disconnected for", quiet && quiet.why === "disconnected" ? quietFor(quiet) : ""], ["Agent", node.agent_id],
    ["Reason of the loss", node.cause], ["Gone for", node.cause && since(node.at)],
    ...Object.entries(node.remarks || {}).map(([word, said]) => [word[0].toUpperCase() + word.slice(1), said]),
    ...(node.cordon ? cordonOf(node.cordon) : []),
  ]);
  if (byId("looks")) drawLooks(node);
}

// Output and stacks of a worker of the chosen node, for viewers who may act.

let askedAbout = null; // the rank whose answer is wanted or shown

function drawLooks(node) {
  const first = node.first_rank, isThere = first !== undefined && shown.run.ended_at === undefined;
  byId("looks").hidden = !isThere;
  const select = byId("look-rank"), shape = `${node.node_id} ${first} ${node.local_world_size}`;
  if (!isThere || select.dataset.shape === shape) return;
  select.dataset.shape = shape;
  select.replaceChildren(...Array.from({ length: node.local_world_size }, (_, local) => make("option", "", `${first + local}`)));
  forgetLook();
}

function forgetLook() {
  askedAbout = null;
  fill(byId("look-says"), "");
  byId("look-text").hidden = true;
}

async function look(path, questions, tell) {
  // Ask an agent all questions at once, and show the answers that are not refusals.
  const rank = Number(byId("look-rank").value), wanted = askedAbout = { rank };
  fill(byId("look-says"), `Asking the agent of rank ${rank} ...`);
  byId("look-text").hidden = true;
  const answers = await Promise.all(questions.map((question) => askAgent(path, { run_id: runId, rank, ...question })));
  if (askedAbout !== wanted) return; // the viewer has asked about another worker meanwhile
  const found = answers.filter(({ said }) => said).map(({ said }) => said);
  const [says, text] = found.length ? tell(found) : [answers[0].refusal, ""];
  fill(byId("look-says"), says);
  fill(byId("look-text"), text);
  byId("look-text").hidden = !text;
}

async function askAgent(path, body) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": document.body.dataset.csrf };
  try {
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
    const said = await answer.json();
    return answer.ok ? { said } : { refusal: said.message };
  } catch {
    return { refusal: "The server did not answer." };
  }
}

const STREAMS = [{ stream: "stdout" }, { stream: "stderr" }];
const placeOfLog = ({ stream, path, text }) => `${stream}, ${path}${text ? "" : ", which is empty"}`;

function tellLogs(logs) {
  // sentence and text of one stream or of both: each has a log file of its own
  const [{ rank, node_id: node }] = logs, written = logs.filter(({ text }) => text);
  const text = written.map(({ stream, text: end }) => (written.length > 1 ? `${stream}:\n${end}` : end)).join("\n");
  return [`Rank ${rank} on node ${node}: the end of its ${logs.map(placeOfLog).join("; and of its ")}`, text];
}

const tellStacks = ([{ sentence, stack, problems }]) => [[sentence, ...(problems || [])].join("; "), (stack || []).join("\n")];

function cordonOf(cordon) {
  const { until } = cordon, [what, why] = reasonOf(cordon);
  return [[what, why], ["Uncordoned", until === undefined ? "only by an operator" : `in ${duration(until - now())}`]];
}

function move(event) {
  const list = [...byId("nodes").querySelectorAll(".node")];
  if (!list.length) return;
  const at = chosen === null ? -1 : list.indexOf(cells.get(chosen));
  const grid = (list[at] || list[0]).parentElement;
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  let to = at + steps[event.key];
  if (event.key === "Home") to = 0;
  else if (event.key === "End") to = list.length - 1;
  else if (!(event.key in steps)) return;
  event.preventDefault();
  if (at < 0) to = 0;
  if (Math.abs(to - at) === columns && (list[to] || {}).parentElement !== grid) to = nextTo(list, at, Math.sign(to - at));
  if (to < 0 || to >= list.length) return;
  pointed = null;
  choose(keyOf(list[to]));
}

function chooseFirst() {
  // choose the node of the first failure
  const cell = firstFailed();
  if (!cell) return;
  const fold = blocks.get(groupOf(cell));
  if (fold && !fold.isOpen) fold.button.click();
  byId("nodes").focus();
  choose(keyOf(cell));
}

function nextTo(list, at, step) {
  // Return the nearest cell of the block below or above.
  let to = at;
  while (list[to] && list[to].parentElement === list[at].parentElement) to += step;
  return to;
}
