// Shows the document of /v1/watch, and applies its differences as they arrive. Everything that a script or an agent has
// written is put into the page as text, never as markup.
"use strict";

const SILENCE_MS = 15000; // the server sends something every 5 s
const AGAIN_MS = 1000;
const LOST = "connection lost, trying again";
const TONE_OF = JSON.parse(document.body.dataset.toneOf);
const ORDER = document.body.dataset.phases.split(" "); // phases of runs that need a person come first
const ENDINGS = { starts: "starts in", gives_up: "gives up in", ends: "ends in" };

const byId = (id) => document.getElementById(id);
const runId = document.body.dataset.runId;
let shown = {}; // the document
let ahead = 0; // seconds by which the server's clock is ahead of this one
let drawing = false;
let changedNodes = null; // keys of the nodes to draw again; null: all

// Text.

function fill(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

// Other words of policies ask for attention.
const toneOf = (word) => TONE_OF[word] || (word ? "busy" : "none");

function toned(element, word) {
  element.dataset.tone = toneOf(word);
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

function reasonOf({ by, reason, excluded }) {
  return [excluded ? "Excluded" : "Cordoned", [excluded ? "" : `by ${by}`, reason].filter(Boolean).join(": ")];
}

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
    say("lost", LOST, this.heardAt / 1000 + ahead);
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
      say("lost", LOST, this.heardAt / 1000 + ahead);
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
  fill(trouble, server.unhealthy_reason ? trouble.dataset.begins + server.unhealthy_reason : "");
  const others = new Map();
  (server.shards || []).forEach((shard) => others.set(shard.leader, [...(others.get(shard.leader) || []), shard.shard]));
  const leaders = byId("leaders");
  const isFollower = server.leads === false || (runId && !shown.run);
  leaders.hidden = others.size === 0 || (!isFollower && others.size === 1);
  if (leaders.hidden) return;
  leaders.replaceChildren(`${server.leads ? leaders.dataset.shares : leaders.dataset.follows} `);
  for (const [leader, shards] of others) {
    const which = others.size > 1 ? ` (shard ${shards.join(", ")})` : "";
    if (leader) leaders.append("Leader: ", linkTo(leader), `${which} `);
    else leaders.append(`${leaders.dataset.unknown}${which}. `);
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

function whyOf(run) {
  // without what the health, which stands below it, says as well
  return run.health ? run.reason.replace(`; ${run.health.sentence}`, "") : run.reason;
}

function drawSteps(list, steps, commands) {
  // next steps, each with a button that copies the command at its end, if it has one; drawn again only if they have
  // changed. A name in a step may look like a command, so no command is searched for.
  const wanted = steps.join("\n");
  if (list.dataset.steps === wanted) return;
  list.dataset.steps = wanted;
  list.hidden = steps.length === 0;
  list.replaceChildren(...steps.map((step, index) => {
    const command = commands[index], item = make("li", "", command ? step.slice(0, -command.length) : step);
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
    drawSteps(byId("health-next"), health.next, health.commands);
  }
  drawSteps(byId("no-progress"), run.no_progress && !isTroubled(run) ? [run.no_progress] : [], [run.no_progress_command]);
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
