// Shows the document of /v1/watch, and applies its differences as they arrive. Everything that a script or an agent has
// written is put into the page as text, never as markup.
"use strict";

const SILENCE_MS = 15000; // the server sends something every 5 s
const AGAIN_MS = 1000;
const MOST_EVENTS = 30;
const EVENTS_AT_ONCE = 1000;
const EVENTS_OF_A_PAGE = 200; // a burst counts one by one here, but is shown as one line
const BURST = 3, BURST_S = 10; // this many events of one kind become one line if each follows the previous one within BURST_S
const BURSTS = { node_joined: "nodes joined", node_lost: "nodes lost", node_left: "nodes left", node_unfit: "nodes are unfit", workers_failed: "nodes' workers failed", node_cordoned: "nodes cordoned", node_uncordoned: "nodes uncordoned", node_drained: "nodes drained" };
const TONES = {
  starting: "calm", training: "good", checkpointing: "done", detecting: "bad", lost: "bad", running: "good", finishing: "done", succeeded: "done", forming: "calm", waiting: "calm", standby: "none",
  restarting: "busy", stopping: "busy", silent: "busy", disconnected: "busy", cordoned: "busy", excluded: "busy", draining: "busy",
  missing: "bad", failed: "bad", unhealthy: "bad",
  hung: "bad", unreachable: "bad", looping: "bad", overdue: "busy", stalled: "busy", last_restart_spent: "busy", lacks_nodes: "busy", undecided: "bad", below_size: "calm",
};
const ORDER = document.body.dataset.phases.split(" "); // phases of runs that need a person come first
const ENDINGS = { starts: "starts in", gives_up: "gives up in", ends: "ends in" };

const byId = (id) => document.getElementById(id);
const runId = document.body.dataset.runId;
let shown = {}; // the document
let ahead = 0; // seconds by which the server's clock is ahead of this one
let drawing = false;

// Text.

function fill(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function toned(element, word) {
  element.dataset.tone = TONES[word] || (word ? "busy" : "none"); // words of policies ask for attention
  return element;
}

function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  element.className = name;
  element.textContent = text;
  return element;
}

function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const limit = (seconds) => (seconds < 100 ? `${seconds} s` : duration(seconds)); // exact, as the user set it
const now = () => Date.now() / 1000 + ahead;
const since = (at) => duration(now() - at);
const worded = (word) => word.replaceAll("_", " ");
const isTroubled = (run) => Boolean(run.health && run.health.is_trouble); // a person should look at it
const isUtc = () => byId("utc").checked;
const clocks = new Map(); // by whether they show UTC: creating one is slow

function moment(at) {
  // date, time and zone, in the viewer's zone or UTC
  if (!clocks.has(isUtc())) {
    const number = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
    clocks.set(isUtc(), new Intl.DateTimeFormat("en-US", { ...number, timeZoneName: "short", timeZone: isUtc() ? "UTC" : undefined }));
  }
  const part = Object.fromEntries(clocks.get(isUtc()).formatToParts(at * 1000).map(({ type, value }) => [type, value]));
  return { date: `${part.year}-${part.month}-${part.day}`, time: `${part.hour}:${part.minute}:${part.second}`, zone: part.timeZoneName };
}

function stamp(at) {
  const { date, time, zone } = moment(at);
  return `${date} ${time} ${zone}`;
}

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function countdown(run) {
  if (run.deadline_at === undefined) return run.finished_at === undefined ? "" : `last finished ${since(run.finished_at)} ago`;
  return `${ENDINGS[run.ending] || "in"} ${duration(run.deadline_at - now())}`;
}

function nodesOf(run) {
  const wanted = run.min_nodes === run.max_nodes ? run.max_nodes : `${run.min_nodes} to ${run.max_nodes}`;
  return `${run.nodes} of ${wanted}`;
}

function pathOf(base, name, id) {
  return id === "." || id === ".." ? `${base}?${name}=${id}` : base + encodeURIComponent(id);
}

const runPath = (id) => pathOf(document.body.dataset.runPage, "run_id", id);
const nodePath = (id) => pathOf(document.body.dataset.nodePage, "node_id", id);

function facts(list, pairs) {
  const wanted = pairs.filter(([, text]) => text !== undefined && text !== "");
  while (list.children.length > wanted.length) list.lastChild.remove();
  wanted.forEach(([name, text], index) => {
    let pair = list.children[index];
    if (!pair) {
      pair = make("div");
      pair.append(make("dt"), make("dd"));
      list.append(pair);
    }
    fill(pair.firstChild, name);
    fill(pair.lastChild, String(text));
  });
}

function bar(element, legend, parts) {
  // parts: [word, size, text]
  const whole = parts.reduce((sum, part) => sum + part[1], 0) || 1;
  element.replaceChildren(...parts.map(([word, size]) => {
    const piece = toned(make("span"), word);
    piece.style.width = `${(100 * size) / whole}%`;
    return piece;
  }));
  legend.replaceChildren(...parts.map(([word, , text]) => toned(make("span", "badge", text), word)));
}

function line(long, texts, alsoLong) {
  // row of a table; cells with sentences are wide
  const row = make("tr");
  row.append(...texts.map((text, index) => {
    const cell = make(index ? "td" : "th", index === long || index === alsoLong ? "long" : "", text);
    if (!index) cell.scope = "row";
    return cell;
  }));
  return row;
}

function drawRows(template, body, rows, things, update) {
  // Rows of a table by name. Each row is made once, so that it keeps the focus. `things`: [name, content of the row].
  const names = new Set(things.map(([name]) => name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    rows.delete(name);
    removeRow(row);
  }
  things.forEach(([name, thing], index) => {
    let row = rows.get(name);
    if (!row) {
      row = template.content.firstElementChild.cloneNode(true);
      row.fields = {};
      row.querySelectorAll("[data-field]").forEach((each) => (row.fields[each.dataset.field] = each));
      rows.set(name, row);
    }
    update(row, thing);
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
  });
}

function removeRow(row) {
  // The focus in the row, and an open dialog of its button, move to the next row.
  const hasFocus = row.contains(document.activeElement), next = row.nextElementSibling || row.previousElementSibling;
  const following = (next && (next.querySelector("button[data-path]") || next.querySelector("a, button"))) || byId("main");
  if (row.contains(pressed)) pressed = following;
  row.remove();
  if (hasFocus) following.focus();
}

// The stream.

function merge(target, patch) {
  // RFC 7386
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete target[name];
    else if (isMap(value)) target[name] = merge(isMap(target[name]) ? target[name] : Object.create(null), value);
    else target[name] = value;
  }
  return target;
}

const isMap = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

class Stream {
  constructor() {
    this.heardAt = Date.now();
    setInterval(() => this.look(), 1000);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    this.open();
  }

  open() {
    this.close();
    this.heardAt = Date.now();
    this.source = new EventSource("/v1/watch" + (runId ? `?run_id=${encodeURIComponent(runId)}` : ""));
    this.source.addEventListener("open", () => this.heard());
    this.source.addEventListener("snapshot", (event) => {
      shown = merge(Object.create(null), this.heard(event));
      changedNodes = null;
      if (!renews((shown.server || {}).version)) draw();
    });
    this.source.addEventListener("patch", (event) => {
      const patch = this.heard(event);
      if (patch.nodes && changedNodes) Object.keys(patch.nodes).forEach((key) => changedNodes.add(key));
      if (patch.quiet && changedNodes) Object.keys(patch.quiet).forEach((key) => changedNodes.add(key));
      merge(shown, patch);
      draw();
    });
    this.source.addEventListener("ping", (event) => this.heard(event));
    this.source.addEventListener("error", () => this.lost());
  }

  close() {
    clearTimeout(this.again);
    if (this.source) this.source.close();
    this.source = null;
  }

  heard(event) {
    this.heardAt = Date.now();
    say("live", "live");
    if (!event) return null;
    const content = JSON.parse(event.data);
    if (content.time) ahead = content.time - Date.now() / 1000;
    return content;
  }

  lost() {
    say("lost", "connection lost, trying again", this.heardAt / 1000 + ahead);
    if (this.source && this.source.readyState !== EventSource.CLOSED) return; // the browser connects again
    this.close();
    this.again = setTimeout(() => this.retry(), AGAIN_MS);
  }

  async retry() {
    // A refusal looks like a lost connection. Only the answer to the page shows that a login is needed.
    try {
      const answer = await fetch(location.href, { method: "HEAD", headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.redirected || answer.status === 403) return location.reload();
    } catch { /* the server does not answer: keep trying */ }
    if (!document.hidden && !this.source) this.open();
  }

  look() {
    if (this.source && Date.now() - this.heardAt > SILENCE_MS) {
      say("lost", "connection lost, trying again", this.heardAt / 1000 + ahead);
      this.open();
    }
    if (!document.hidden && !isStale()) tick(); // without a server nothing here is known to last any longer
  }
}

const RENEWED = "rdzv-page-renewed-for-"; // before the version: key of a time in the browser's storage
const RENEWS_EACH_MS = 600_000;

function renews(version) {
  // Load the page again if the server has another version: this script may not understand what it sends. Only once in
  // RENEWS_EACH_MS for each version, since servers of several versions may share one address. Answers in an open dialog are
  // kept until it closes.
  const dialog = byId("dialog");
  if (!version || version === document.body.dataset.version) return false;
  try {
    if (Date.now() - Number(sessionStorage.getItem(RENEWED + version)) < RENEWS_EACH_MS) return false;
    sessionStorage.setItem(RENEWED + version, Date.now());
  } catch { return false; /* the browser stores nothing, so the page might load again and again */ }
  if (dialog && dialog.open) dialog.addEventListener("close", () => location.reload(), { once: true });
  else location.reload();
  return true;
}

function say(word, text, knownAt) {
  const live = byId("live");
  if (live.dataset.word !== word) {
    live.dataset.word = word;
    fill(live, text);
    document.body.toggleAttribute("data-stale", isStale());
    drawPeers((shown.server || {}).peers || [], knownAt);
    if (titled) drawTitle(...titled);
  }
}

const isStale = () => byId("live").dataset.word === "lost"; // what the page shows may no longer be so

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawServer(shown.server || {});
    if (runId) drawRun();
    else drawRuns();
  });
}

function tick() {
  if (runId) tickRun();
  else tickRuns();
}

// The server.

function drawServer(server) {
  const trouble = byId("trouble");
  trouble.hidden = !server.unhealthy_reason;
  fill(trouble, server.unhealthy_reason ? `The server cannot decide anything now: ${server.unhealthy_reason}` : "");
  const others = new Map();
  (server.shards || []).forEach((shard) => others.set(shard.leader, [...(others.get(shard.leader) || []), shard.shard]));
  const leaders = byId("leaders");
  const isFollower = server.leads === false || (runId && !shown.run);
  leaders.hidden = others.size === 0 || (!isFollower && others.size === 1);
  if (leaders.hidden) return;
  leaders.replaceChildren(`${server.leads ? "This server shares the runs with others." : "This server follows; another server leads."} `);
  for (const [leader, shards] of others) {
    const which = others.size > 1 ? ` (shard ${shards.join(", ")})` : "";
    if (leader) leaders.append("Leader: ", linkTo(leader), `${which} `);
    else leaders.append(`The leader is unknown${which}. `);
  }
}

function drawPeers(peers, knownAt) {
  // While the server does not answer: how old the data are, and links to other servers, to which a page may not send
  // requests by itself.
  const element = byId("peers");
  element.hidden = !isStale();
  if (element.hidden) return;
  element.replaceChildren(`This server does not answer. The page shows what it knew at ${stamp(knownAt)}; workers keep running.`);
  if (peers.length) element.append(" Other servers of the cluster: ");
  peers.forEach((peer, index) => element.append(index ? ", " : "", linkTo(peer)));
}

function linkTo(server) {
  // link to the same page of another server
  const link = make("a", "", server);
  link.href = `${location.protocol}//${server}${runId ? runPath(runId) : "/"}`;
  return link;
}

// Health.

let titled = null; // the last title, and whether it is of a trouble

function drawTitle(title, isTrouble) {
  // title of the tab, whose icon shows trouble
  titled = [title, isTrouble];
  document.title = `${isStale() ? "no answer · " : ""}${title} · rdzv-server`;
  const icon = byId("icon"), wanted = isTrouble || isStale() ? icon.dataset.trouble : icon.dataset.well;
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}

function drawHealth(badge, health) {
  badge.hidden = !health;
  if (health) fill(toned(badge, health.state), worded(health.state));
}

const commandOf = (step) => (step.match(/rdzvctl .*$/) || [""])[0];

function whyOf(run) {
  // without what the health, which stands below it, says as well
  return run.health ? run.reason.replace(`; ${run.health.sentence}`, "") : run.reason;
}

function drawSteps(list, steps) {
  // next steps, each command with a button that copies it; drawn again only if they have changed
  const wanted = steps.join("\n");
  if (list.dataset.steps === wanted) return;
  list.dataset.steps = wanted;
  list.hidden = steps.length === 0;
  list.replaceChildren(...steps.map((step) => {
    const command = commandOf(step), item = make("li", "", command ? step.slice(0, -command.length) : step);
    if (command) item.append(make("code", "", command));
    if (command && navigator.clipboard) {
      const button = make("button", "quiet-button", "Copy");
      button.type = "button";
      button.setAttribute("aria-label", `Copy ${command}`);
      button.addEventListener("click", () => navigator.clipboard.writeText(command).then(() => notice("copied")));
      item.append(" ", button);
    }
    return item;
  }));
}

// One run.

function drawRun() {
  const run = shown.run;
  byId("no-run").hidden = Boolean(run);
  byId("of-run").hidden = !run;
  if (!run) return drawTitle(runId, false);
  fill(toned(byId("phase"), run.phase), run.phase);
  fill(byId("reason"), whyOf(run));
  drawTitle(`${isTroubled(run) ? worded(run.health.state) : run.phase} · ${runId}`, isTroubled(run));
  const { health } = run;
  byId("health").hidden = !health;
  drawHealth(byId("health-state"), health);
  if (health) {
    fill(byId("health-sentence"), health.sentence === run.reason ? "" : health.sentence); // it stands above already
    fill(byId("health-others"), health.others ? `Also: ${health.others.map(worded).join(", ")}` : "");
    drawSteps(byId("health-next"), health.next);
  }
  document.querySelectorAll(".head button[data-path]").forEach((button) => {
    const ended = run.ended_at !== undefined;
    button.hidden = button.dataset.ofEnded ? !run.can_be_forgotten : ended;
  });
  drawFailure(run);
  drawLinks(run.broken_links || []);
  drawNodes(run);
  tickRun();
  events.look(run);
}

function tickRun() {
  const run = shown.run;
  if (!run) return;
  timeline.look(run);
  fill(byId("countdown"), countdown(run));
  if (run.health) fill(byId("health-age"), `for ${since(run.health.since)}, since ${stamp(run.health.since)}`);
  const own = Object.entries(run.own_budgets || {}).map(([cause, { used, most }]) => [`Restarts for ${cause}`, `${used} of ${most} used`]);
  const causes = Object.entries(run.restarts || {}).map(([cause, times]) => `${times} × ${cause.replaceAll("_", " ")}`);
  facts(byId("facts"), [
    ["Nodes", nodesOf(run)], ["Standing by", run.standbys || ""], ["Workers", run.world_size || ""],
    ["Round", run.round], ["Restarts", `${run.restarts_used} of ${run.max_restarts} used`], ...own, ["All restarts", causes.join(", ")],
    [run.phase, run.ended_at === undefined ? `for ${since(run.since)}` : `${since(run.since)} ago`],
    [run.ended_at === undefined ? "Age" : "Begun", since(run.created_at) + (run.ended_at === undefined ? "" : " ago")], ["Attempt", run.attempt > 1 ? run.attempt : ""],
  ]);
  drawTime(run);
  for (const key in shown.quiet) if (cells.has(key)) fillWord(key, cells.get(key));
  drawNode();
}

function drawFailure(run) {
  const told = run.first_failure;
  byId("failure").hidden = !told;
  if (!told) return;
  const failure = told.failure;
  fill(byId("failure-sentence"), told.sentence);
  fill(byId("failure-hint"), failure.hint || "");
  byId("failure-hint").hidden = !failure.hint;
  const isEnd = run.end_failure && run.end_failure.at !== told.at;
  facts(byId("failure-facts"), [
    ...placeOf(told), ["Process", failure.pid], ["Failed rounds", run.failed_rounds > 1 ? run.failed_rounds : ""],
    ["Error file", failure.error_file || ""], ["What ended the run", isEnd ? run.end_failure.sentence : ""],
  ]);
  drawLastFailure(run.last_failure, run.failed_rounds);
  const traceback = failure.traceback || [], written = failure.stderr_tail || [];
  const evidence = traceback.length ? traceback : written;
  fill(byId("evidence-title"), traceback.length ? "Traceback" : "Last output");
  fill(byId("evidence"), evidence.join("\n"));
  byId("evidence").hidden = byId("evidence-title").hidden = evidence.length === 0;
}

function drawLastFailure(told, count) {
  byId("last-failure").hidden = !told;
  if (!told) return;
  fill(byId("last-failure-title"), `Last failure, the ${ordinal(count)}`);
  fill(byId("last-failure-sentence"), told.sentence);
  facts(byId("last-failure-facts"), [...placeOf(told), ["Hint", told.failure.hint || ""]]);
}

function placeOf({ round, at, failure }) {
  // where and when a worker failed, as pairs of name and text
  const { singled_out: isKnown, node_id: node, rank, local_rank: local, cause } = failure;
  return [
    ["Round", round], ["At", stamp(at)], ["Node", isKnown ? node : ""],
    ["Rank", isKnown ? `${rank} (local ${local})` : "unknown"], ["How it ended", cause],
  ];
}

function ordinal(count) {
  const teen = count % 100 > 10 && count % 100 < 14;
  return `${count}${(!teen && ["th", "st", "nd", "rd"][count % 10]) || "th"}`;
}

function drawLinks(links) {
  byId("links-card").hidden = links.length === 0;
  byId("links").replaceChildren(...links.map(({ nodes, problem }) => make("li", "", `${nodes.join(" and ")}: ${problem}`)));
}

// Nodes.

const MOST_CARDS = 256; // more nodes are small cells without text, in a block for each state or place
const MOST_OPEN = 1024; // most cells that are shown by default; in a larger run only those of blocks that need attention
const NO_PLACE = "no place given";
const TONES_FIRST = ["bad", "busy", "calm", "none", "done", "good"]; // order of the blocks
const CALM = TONES_FIRST.indexOf("calm"); // from here on no block needs attention

const cells = new Map(); // by the key of the node, or of the missing seat
const blocks = new Map(); // by state or place: { block, title, button, asked: true or false if the viewer has opened or folded it }
let isCompact = false;
let grouping = "rank"; // rank (only for cards), state or place
let hasPlaces = false;
let changedNodes = null; // keys; null: all
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

const urgency = (word) => TONES_FIRST.indexOf(TONES[word] || "busy");
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

function reasonOf({ by, reason, excluded }) {
  return [excluded ? "Excluded" : "Cordoned", [excluded ? "" : `by ${by}`, reason].filter(Boolean).join(": ")];
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

// Time.

function drawTime(run) {
  const spent = { ...run.time_s };
  if (run.ended_at === undefined) spent[run.time_in] = (spent[run.time_in] || 0) + Math.max(0, now() - run.time_since);
  byId("restarts-took").hidden = !run.restarts_took;
  byId("restarts-took").textContent = run.restarts_took || "";
  const parts = Object.entries(spent).filter(([, seconds]) => seconds > 0);
  byId("time").hidden = parts.length === 0;
  if (!parts.length) return;
  const whole = parts.reduce((sum, part) => sum + part[1], 0);
  const share = (seconds) => `${Math.round((100 * seconds) / whole)} %`;
  bar(byId("time-bar"), byId("time-legend"), parts.map(([word, seconds]) => [
    word, seconds, `${word.replaceAll("_", " ")} ${duration(seconds)} (${share(seconds)})`,
  ]));
}

// Events: the latest ones, and the rounds that they describe.

const events = {
  last: 0, seen: "", busy: false, recent: [], older: [], opened: new Set(), rounds: [], // of all attempts, in order: the events that opened, started and ended each

  async look(run) {
    const stamp = `${run.attempt} ${run.event_number}`;
    if (this.busy || stamp === this.seen) return;
    this.busy = true;
    this.seen = stamp;
    if (run.event_number < this.last) this.forget();
    try {
      await this.fetch();
      setTimeout(() => shown.run && this.look(shown.run), 250); // events that have happened meanwhile
    } catch {
      this.seen = ""; // the next difference asks again
    }
    this.busy = false;
  },

  forget() {
    // The run was forgotten, and a new one has its id: the numbers of events begin again.
    this.last = 0;
    this.rounds = [];
    this.recent = [];
    this.older = [];
  },

  async fetch() {
    if (runId === "." || runId === "..") return;
    for (;;) {
      const found = await this.read(this.last, EVENTS_AT_ONCE);
      found.forEach((event) => this.take(event));
      this.draw(found);
      if (found.length < EVENTS_AT_ONCE) return;
    }
  },

  async read(after, limit) {
    const path = `/v1/runs/${encodeURIComponent(runId)}/events?after=${after}&limit=${limit}`;
    const answer = await fetch(path, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(answer.statusText);
    return (await answer.json()).events || [];
  },

  take(event) {
    this.last = event.number;
    const round = this.rounds.at(-1), { kind } = event;
    if (round && ["round_opened", "run_failed", "run_succeeded"].includes(kind)) round.ended ??= event;
    if (round && kind === "round_started") round.started = event;
    if (kind === "run_created" || kind === "round_opened") this.rounds.push({ opened: event });
  },

  draw(found) {
    this.recent = [...this.recent, ...found].slice(-EVENTS_OF_A_PAGE);
    this.redraw();
  },

  redraw() {
    byId("events-card").hidden = this.recent.length === 0;
    if (!this.recent.length) return;
    this.drawPage(this.older.at(-1) || this.recent);
    this.drawRounds();
    this.drawAttempts();
  },

  drawPage(page) {
    const groups = this.grouped(page).slice(-MOST_EVENTS);
    this.from = groups[0][0].number;
    byId("events").replaceChildren(...groups.map((group) => this.line(group)).reverse());
    const to = groups.at(-1).at(-1).number;
    fill(byId("events-title"), this.older.length ? "Older events" : "Latest events");
    fill(byId("events-range"), `${this.from} to ${to} of ${this.last}`);
    byId("events-older").disabled = this.from <= 1 || this.from === this.oldest;
    byId("events-newer").disabled = this.older.length === 0;
  },

  grouped(page) {
    // group events of one kind in quick succession, such as the joins of a large run
    const groups = [];
    for (const event of page) {
      const group = groups.at(-1), before = group && group.at(-1);
      if (before && before.kind === event.kind && !event.by && event.at - before.at <= BURST_S) group.push(event);
      else groups.push([event]);
    }
    return groups.flatMap((group) => (group.length < BURST ? group.map((event) => [event]) : [group]));
  },

  line(group) {
    const [first] = group, item = make("li"), at = make("time");
    if (first.at !== undefined) {
      at.dateTime = new Date(first.at * 1000).toISOString();
      at.textContent = stamp(first.at);
    }
    const numbers = group.length > 1 ? `${first.number}–${group.at(-1).number}` : `${first.number}`;
    item.append(make("span", "number", numbers), at, group.length > 1 ? this.burst(group) : make("span", "what", this.sentence(first)));
    return item;
  },

  burst(group) {
    const [{ kind, number }] = group, all = make("details", "what");
    all.append(make("summary", "", `${group.length} ${BURSTS[kind] || `× ${worded(kind)}`}`), ...group.map((event) => make("p", "", event.reason)));
    all.open = this.opened.has(number);
    all.addEventListener("toggle", () => (all.open ? this.opened.add(number) : this.opened.delete(number)));
    return all;
  },

  sentence: (event) => `${worded(event.kind)}: ${event.reason}${event.by ? ` (by ${event.by})` : ""}`,

  async goBack() {
    const { from } = this, after = Math.max(0, from - 1 - EVENTS_OF_A_PAGE);
    try {
      const found = (await this.read(after, EVENTS_OF_A_PAGE)).filter((event) => event.number < from);
      if (found.length) this.older.push(found);
      else this.oldest = from; // the server has dropped the events before
    } catch { /* the button can be pressed again */ }
    this.redraw();
    if (byId("events-older").disabled) byId("events-newer").focus();
  },

  goOn() {
    this.older.pop();
    this.redraw();
    if (byId("events-newer").disabled) byId("events-older").focus();
  },

  drawAttempts() {
    const isLast = ({ opened, ended }) => opened.attempt < shown.run.attempt && ended && ended.kind !== "round_opened";
    const earlier = this.rounds.filter(isLast).reverse();
    byId("attempts-card").hidden = earlier.length === 0;
    byId("attempts").replaceChildren(...earlier.map(({ opened, ended }) => {
      const { at } = this.rounds.find((round) => round.opened.attempt === opened.attempt).opened;
      return line(2, [
        `${opened.attempt}`, ended.kind.slice("run_".length), ended.reason, `${opened.round}`, duration(ended.at - at),
        stamp(at),
      ]);
    }));
  },

  drawRounds() {
    byId("rounds-card").hidden = this.rounds.length === 0;
    byId("rounds").replaceChildren(...this.rounds.map(({ opened, started, ended }) => {
      const ranFor = started && ended ? duration(ended.at - started.at) : started ? "runs" : "";
      return line(6, [
        opened.attempt > 1 ? `${opened.round} (attempt ${opened.attempt})` : `${opened.round}`, opened.reason,
        started ? (started.charged ? "charged" : "free") : ended ? "never started" : "not yet",
        started ? `${started.nodes} (${plural(started.world_size, "worker")})` : "",
        started && started.duration_s !== undefined ? duration(started.duration_s) : "", ranFor, ended ? ended.reason : "",
      ], 1);
    }).reverse());
  },
};

// Actions.

let pressed = null; // button whose dialog is open, or the element that gets the focus instead

function ask(button) {
  pressed = button;
  const dialog = byId("dialog"), asks = button.dataset.asks.split(" ").filter((name) => name !== "round");
  const seen = button.dataset.asks.includes("round") ? { round: shown.run.round } : {}; // a later round keeps its workers
  const { node } = button.dataset; // the button may belong to another node, or be gone, while the viewer types a reason
  fill(byId("dialog-title"), `${button.textContent}: ${node ? `node ${node}` : runId}`);
  fill(byId("dialog-means"), button.dataset.means);
  fill(byId("dialog-do"), button.textContent);
  byId("dialog-do").className = button.className;
  byId("dialog-error").hidden = true;
  dialog.querySelectorAll("[data-ask]").forEach((field) => {
    field.hidden = !asks.includes(field.dataset.ask);
    field.querySelector("input").value = "";
  });
  if (asks.includes("min_nodes")) {
    byId("ask-min_nodes").value = shown.run.min_nodes;
    byId("ask-max_nodes").value = shown.run.max_nodes;
  }
  notice("");
  drawCost(button);
  byId("ask-min_nodes").oninput = byId("ask-max_nodes").oninput = () => drawCost(button);
  const requestId = crypto.getRandomValues(new Uint32Array(4)).join("-"); // the same for all attempts, so that the action is carried out once
  dialog.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    act(button, asks, { request_id: requestId, ...seen, ...(node ? { node_id: node } : { run_id: runId }) });
  };
  dialog.showModal();
}

let costOf = null; // action and size whose cost is wanted

async function drawCost(button) {
  const query = new URLSearchParams({ action: button.dataset.path.split("/").at(-1) });
  if (button.dataset.node) query.set("node_id", button.dataset.node);
  else query.set("run_id", runId);
  if (button.dataset.asks.includes("min_nodes")) ["min_nodes", "max_nodes"].forEach((name) => query.set(name, byId(`ask-${name}`).value || 0));
  const wanted = costOf = query.toString();
  fill(byId("dialog-cost"), "");
  const answer = await fetch(`/v1/costs?${wanted}`, { headers: { Accept: "application/json" } }).catch(() => null);
  const found = answer && answer.ok ? await answer.json().catch(() => null) : null;
  if (costOf === wanted) fill(byId("dialog-cost"), found ? found.sentence && `Cost: ${found.sentence}.` : "The cost is unknown.");
}

function secondsOf(text) {
  // seconds of "90s", "10m", "2h", "1d", or a number; NaN for other text
  const found = /^\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*$/.exec(text);
  return found ? Number(found[1]) * { "": 1, s: 1, m: 60, h: 3600, d: 86400 }[found[2]] : NaN;
}

async function act(button, asks, body) {
  for (const name of asks.filter(Boolean)) {
    const input = byId("dialog").querySelector(`[data-ask="${name}"] input`);
    if (input.dataset.is === "time") {
      if (input.value.trim() === "") continue;
      body[name] = secondsOf(input.value);
      if (Number.isNaN(body[name])) return refuse(`${input.value} is not a time: write 90s, 10m, 2h or 3d.`, input);
    } else if (input.type !== "number") body[name] = input.value;
    else if (input.value !== "") body[name] = Number(input.value);
  }
  byId("dialog-error").hidden = true;
  byId("dialog-do").disabled = true;
  let said = null;
  try {
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": document.body.dataset.csrf };
    const answer = await fetch(button.dataset.path, { method: "POST", headers, body: JSON.stringify(body) });
    said = await answer.json().catch(() => ({ message: `${answer.status} ${answer.statusText}` }));
    if (answer.ok) {
      byId("dialog").close();
      notice(said.changed === false ? `Nothing to do: ${said.message}` : `${button.textContent}: ${said.message}`);
    } else if (answer.status >= 500) refuse(`The outcome is unknown: ${said.message}. ${ONCE}`);
    else refuse(`The action was not done: ${said.message}`);
  } catch {
    refuse(`The outcome is unknown: the server did not answer. ${ONCE}`);
  }
  byId("dialog-do").disabled = false;
}

const ONCE = "Press the button again to repeat the request safely: the action is done only once.";

function refuse(why, input) {
  fill(byId("dialog-error"), why);
  byId("dialog-error").hidden = false;
  if (input) input.focus();
}

let noticeEnds = 0;

function notice(text) {
  fill(byId("done"), text);
  clearTimeout(noticeEnds);
  noticeEnds = setTimeout(() => fill(byId("done"), ""), 6000);
}

const UTC = "rdzv-times-in-utc"; // key of the choice in the browser's storage

function chooseZone() {
  try {
    localStorage.setItem(UTC, isUtc() ? "1" : "");
  } catch { /* without storage the browser shows its own zone next time */ }
  if (runId) {
    timeline.draw();
    events.redraw();
  }
  draw();
}

try {
  byId("utc").checked = Boolean(localStorage.getItem(UTC));
} catch { /* the viewer's zone */ }
byId("utc").addEventListener("change", chooseZone);
if (runId) {
  byId("nodes").addEventListener("keydown", move);
  byId("nodes").addEventListener("click", (event) => cellAt(event) === null || choose(cellAt(event)));
  byId("nodes").addEventListener("pointerover", (event) => isCompact && point(cellAt(event)));
  byId("nodes").addEventListener("pointerleave", () => point(null));
  byId("nodes").addEventListener("focus", () => isCompact && point(null));
  byId("nodes-first").addEventListener("click", chooseFirst);
  byId("nodes-by").addEventListener("change", () => {
    group(byId("nodes-by").value);
    draw();
  });
  if (byId("looks")) {
    byId("look-rank").addEventListener("change", forgetLook);
    byId("look-log").addEventListener("click", () => look("/v1/runs/logs", STREAMS, tellLogs));
    byId("look-stacks").addEventListener("click", () => look("/v1/runs/stacks", [{}], tellStacks));
  }
  byId("events-older").addEventListener("click", () => events.goBack());
  byId("events-newer").addEventListener("click", () => events.goOn());
} else {
  startRuns();
}
if (byId("dialog")) {
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button[data-path]");
    if (button) ask(button);
  });
  byId("dialog-cancel").addEventListener("click", () => byId("dialog").close());
  byId("dialog").addEventListener("close", () => pressed.focus());
}
new Stream();
