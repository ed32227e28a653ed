// List of all runs: which of them are shown, in which order, and how many at a time. The choice is part of the address,
// so that it remains after Back.
"use strict";

const AT_ONCE = 100; // runs on a page
const AFTER_TYPING_MS = 250;
const LOOK_AGAIN_MS = 10000; // nodes come and go
const rows = new Map(); // by run
const cordonRows = new Map(); // by node
const ASKED = ["words", "phase", "health", "sort", "page"]; // names in the address
const asked = {};
const SORTS = {
  need: (run) => (isTroubled(run) ? severity(run.health.state) : ORDER.indexOf(run.phase)) * 1e12 - run.since,
  run: (run) => run.run_id, nodes: (run) => run.nodes, restarts: (run) => run.restarts_used,
  age: (run) => -run.created_at,
};
const severity = (state) => [...byId("filter-health").options].findIndex(({ value }) => value === state) - 100; // the worst state is the lowest
let withNode = new Map(); // runs with nodes whose names contain these words: some of the names, and how many more there are
let looksAt = "", lookedAt = 0, looksSoon = 0;

function startRuns() {
  const given = new URLSearchParams(location.search);
  ASKED.forEach((name) => (asked[name] = given.get(name) || ""));
  if (!Object.hasOwn(SORTS, asked.sort.replace(/^-/, ""))) asked.sort = "need";
  const form = byId("filter-form");
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["words", "phase", "health", "sort"]) {
    const input = byId(`filter-${name}`);
    if (input.tagName === "SELECT" && asked[name] && ![...input.options].some(({ value }) => value === asked[name])) input.add(new Option(worded(asked[name]), asked[name]));
    input.value = asked[name];
    input.addEventListener("input", () => wish({ [name]: input.value, page: "" }));
  }
  document.querySelectorAll("[data-sort]").forEach((button) => button.addEventListener("click", () => {
    const first = button.dataset.sort, other = first.startsWith("-") ? first.slice(1) : `-${first}`;
    wish({ sort: asked.sort === first && first !== "need" ? other : first, page: "" });
  }));
  byId("previous").addEventListener("click", () => wish({ page: String(pageNumber() - 1) }));
  byId("next").addEventListener("click", () => wish({ page: String(pageNumber() + 1) }));
  byId("show-all").addEventListener("click", () => {
    wish({ words: "", phase: "", health: "", page: "" });
    byId("filter-words").focus();
  });
  lookForNodes();
}

const pageNumber = () => Math.max(1, Math.floor(Number(asked.page)) || 1);

function wish(changes) {
  Object.assign(asked, changes);
  for (const name of ["words", "phase", "health", "sort"]) {
    const input = byId(`filter-${name}`);
    if (name === "sort" && ![...input.options].some(({ value }) => value === asked.sort)) input.add(new Option(sortLabel(), asked.sort));
    if (input.value !== asked[name]) input.value = asked[name];
  }
  const query = new URLSearchParams(ASKED.filter((name) => asked[name] && asked[name] !== "need").map((name) => [name, asked[name]]));
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  clearTimeout(looksSoon);
  looksSoon = setTimeout(lookForNodes, AFTER_TYPING_MS);
  drawRuns();
}

const sortLabel = () => `${asked.sort.replace(/^-/, "")}, the other way round`;

async function lookForNodes() {
  // The list does not contain the names of nodes: the server searches for them.
  const words = asked.words.trim();
  looksAt = words;
  lookedAt = Date.now();
  const found = new Map();
  if (words) {
    try {
      const answer = await fetch(`/v1/nodes?name=${encodeURIComponent(words)}`, { headers: { Accept: "application/json" } });
      if (answer.ok) (await answer.json()).runs.forEach((run) => found.set(run.run_id, run));
    } catch { /* the page shows that the server does not answer */ }
  }
  if (looksAt !== words) return; // the viewer has searched for something else meanwhile
  withNode = found;
  drawRuns();
}

function isWanted(run) {
  const { run_id, reason, phase, health } = run;
  if (asked.phase && phase !== asked.phase) return false;
  const states = health ? [health.state, ...(health.others || [])] : run.ended_at === undefined ? ["ok"] : [];
  if (asked.health === "trouble" ? !isTroubled(run) : asked.health && !states.includes(asked.health)) return false;
  const words = asked.words.trim().toLowerCase();
  if (!words || withNode.has(run_id)) return true;
  const told = health ? `${worded(health.state)} ${health.sentence}` : "";
  return `${run_id} ${reason} ${phase} ${told}`.toLowerCase().includes(words);
}

function drawRuns() {
  const runs = Object.values(shown.runs || {}), wanted = runs.filter(isWanted);
  const turn = asked.sort.startsWith("-") ? -1 : 1, by = SORTS[asked.sort.replace(/^-/, "")];
  const places = new Map(wanted.map((run) => [run, by(run)]));
  const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  wanted.sort((one, other) => turn * compare(places.get(one), places.get(other)) || compare(one.run_id, other.run_id));
  const pages = Math.max(1, Math.ceil(wanted.length / AT_ONCE)), page = Math.min(pageNumber(), pages);
  const first = (page - 1) * AT_ONCE, those = wanted.slice(first, first + AT_ONCE);
  asked.page = page > 1 ? String(page) : "";
  drawRows(byId("run-row"), byId("runs"), rows, those.map((run) => [run.run_id, run]), (row, run) => {
    row.run = run;
    row.fields.run_id.href = runPath(run.run_id);
    fill(row.fields.run_id, run.run_id);
    fill(row.fields.attempt, run.attempt > 1 ? `attempt ${run.attempt}` : "");
    fill(toned(row.fields.phase, run.phase), run.phase);
    drawHealth(row.fields.health, run.phase === "unhealthy" ? undefined : run.health);
    fill(row.fields.reason, isTroubled(run) ? run.health.sentence : run.reason);
    const found = withNode.get(run.run_id);
    fill(row.fields.found, found ? `has node ${found.nodes.join(", ")}${found.more ? ` and ${found.more} more` : ""}` : "");
    drawSteps(row.fields.next, isTroubled(run) ? run.health.next.slice(0, 1) : [], run.health ? run.health.commands : []);
    fill(row.fields.nodes, nodesOf(run) + (run.standbys ? ` + ${run.standbys}` : ""));
    const own = Object.entries(run.own_budgets || {}).filter(([, { used }]) => used).map(([cause, { used, most }]) => `, ${cause} ${used} of ${most}`);
    fill(row.fields.restarts, `${run.restarts_used} of ${run.max_restarts}${own.join("")}`);
  });
  byId("no-runs").hidden = runs.length > 0;
  byId("no-match").hidden = !(runs.length && !wanted.length);
  drawPaging(runs.length, wanted.length, first, those.length, page, pages);
  drawSorted();
  const counts = ORDER.map((phase) => [runs.filter((run) => run.phase === phase).length, phase]);
  fill(byId("counts"), counts.filter(([count]) => count).map((pair) => pair.join(" ")).join(", "));
  const troubled = runs.filter(isTroubled), states = new Map();
  troubled.forEach(({ health }) => states.set(health.state, (states.get(health.state) || 0) + 1));
  const which = [...states].sort(([one], [other]) => severity(one) - severity(other)).map(([state, count]) => `${count} ${worded(state)}`).join(", ");
  byId("needy").hidden = troubled.length === 0;
  fill(byId("needy"), `${plural(troubled.length, "run")} ${troubled.length === 1 ? "needs" : "need"} a look: ${which}`);
  drawTitle(`${troubled.length ? `(${troubled.length}) ` : ""}Runs`, troubled.length > 0);
  drawKeptOut((shown.server || {}).cordons || []);
  tickRuns();
}

function drawPaging(all, matching, first, count, page, pages) {
  const of = matching === all ? `${all}` : `${matching} that match, of ${all}`;
  fill(byId("extent"), pages > 1 ? `Runs ${first + 1} to ${first + count} of ${of}` : matching === all ? "" : `${matching} of ${plural(all, "run")} ${matching === 1 ? "matches" : "match"}`);
  byId("paging").hidden = pages < 2;
  byId("previous").disabled = page < 2;
  byId("next").disabled = page >= pages;
}

function drawSorted() {
  document.querySelectorAll("[data-sort]").forEach((button) => {
    const name = button.dataset.sort.replace(/^-/, ""), heading = button.closest("th");
    if (asked.sort.replace(/^-/, "") !== name) heading.removeAttribute("aria-sort");
    else heading.setAttribute("aria-sort", asked.sort.startsWith("-") ? "descending" : "ascending");
  });
}

function drawKeptOut(cordons) {
  // nodes that get no seat in any run, also nodes that are in no run now
  const named = cordons.map((cordon) => [cordon.node_id, cordon]);
  drawRows(byId("cordon-row"), byId("cordons"), cordonRows, named, (row, cordon) => {
    const at = cordon.until && stamp(cordon.until), [what, why] = reasonOf(cordon);
    const told = [what, why].filter(Boolean).join(cordon.excluded ? ": " : " ");
    fill(row.fields.node_id, cordon.node_id);
    row.fields.node_id.href = nodePath(cordon.node_id);
    fill(row.fields.why, `${told}; until ${at || "an operator uncordons it"}`);
    row.querySelectorAll("button").forEach((button) => {
      button.dataset.node = cordon.node_id;
      button.setAttribute("aria-label", `${button.textContent} node ${cordon.node_id}`);
    });
  });
  byId("kept-out").hidden = cordons.length === 0;
}

function tickRuns() {
  if (asked.words.trim() && Date.now() - lookedAt > LOOK_AGAIN_MS) lookForNodes();
  for (const { run, fields } of rows.values()) {
    fill(fields.age, run.ended_at === undefined ? since(run.created_at) : `${since(run.ended_at)} ago`);
    fill(fields.countdown, isTroubled(run) ? `for ${since(run.health.since)}` : countdown(run));
  }
}
