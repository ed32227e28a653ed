// Shows the events of a run: the latest ones, and the rounds that they describe. It is loaded before page.js, whose
// stream calls it, and calls functions of page.js only later.
"use strict";

const MOST_EVENTS = 30;
const EVENTS_AT_ONCE = 1000;
const EVENTS_OF_A_PAGE = 200; // a burst counts one by one here, but is shown as one line
const BURST = 3, BURST_S = 10; // this many events of one kind become one line if each follows the previous one within BURST_S
const BURSTS = { node_joined: "nodes joined", node_lost: "nodes lost", node_left: "nodes left", node_unfit: "nodes are unfit", workers_failed: "nodes' workers failed", node_cordoned: "nodes cordoned", node_uncordoned: "nodes uncordoned", node_drained: "nodes drained" };

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
