// Draws a run over time, from /v1/runs/ID/timeline. It is loaded before page.js, whose stream calls it, and calls
// functions of page.js only later.
"use strict";

const timeline = {
  EVERY_S: 10, SOONEST_S: 1, // between two requests to the server
  LABELS: 98, LANE: 18, CHART: 56, LEAST: 1.5, // pixels
  LANES: { forming: "forming", running: "running", checkpointing: "checkpointing", "standing still": "detecting", "lost work": "lost" }, // and their words in TONE_OF
  MARKS: { fault: ["faults", "bad"], warning: ["warnings", "busy"], notice: ["notices", "calm"], node: ["nodes", "calm"], action: ["actions", "done"], server: ["server", "busy"] },
  STEPS_S: [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600],

  data: null, seen: "", at: 0, busy: false, points: [], index: null,

  look(run) {
    const age = now() - this.at, stamp = `${run.attempt} ${run.event_number}`;
    const isDue = stamp !== this.seen ? age > this.SOONEST_S : age > this.EVERY_S && run.ended_at === undefined;
    if (isDue && !this.busy && runId !== "." && runId !== "..") this.fetch(stamp);
  },

  async fetch(stamp) {
    this.busy = true;
    this.at = now();
    try {
      const answer = await fetch(`/v1/runs/${encodeURIComponent(runId)}/timeline`, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.statusText);
      this.data = await answer.json();
      this.seen = stamp;
      this.draw();
    } catch { /* the next call of `look` asks again */ }
    this.busy = false;
  },

  draw() {
    const { data } = this;
    byId("timeline-card").hidden = !data || data.rounds.length === 0;
    if (!data || !data.rounds.length) return;
    const chosen = this.index === null || this.index === this.points.length - 1 ? null : this.points[this.index];
    this.begin = data.created_at;
    this.end = Math.max(data.ended_at || data.now, this.begin + 1);
    this.width = Math.max(260, byId("timeline").clientWidth);
    const shapes = [];
    let y = this.drawLanes(shapes, 2);
    y = this.drawMarks(shapes, y);
    y = this.drawCharts(shapes, y);
    y = this.drawAxis(shapes, y);
    const svg = this.shape("svg", { viewBox: `0 0 ${this.width} ${y}`, width: this.width, height: y, "aria-hidden": "true" });
    this.cursor = this.shape("line", { class: "cursor", y1: 0, y2: y - 16, x1: -9, x2: -9 });
    svg.append(...shapes, this.cursor);
    byId("timeline").replaceChildren(svg);
    this.findPoints();
    this.choose(chosen === null ? this.points.length - 1 : this.nearest(chosen), this.index !== null);
    this.drawTable();
    byId("timeline-attempt").hidden = data.attempt === 1;
    fill(byId("timeline-attempt"), `This is attempt ${data.attempt}. Earlier attempts are not in the picture.`);
  },

  shape(tag, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? Number(value.toFixed(1)) : value);
    element.textContent = text;
    return element;
  },

  x(at) {
    const share = Math.min(1, Math.max(0, (at - this.begin) / (this.end - this.begin)));
    return this.LABELS + share * (this.width - this.LABELS - 8);
  },

  label(shapes, y, text) {
    shapes.push(this.shape("text", { x: 0, y, class: "lane" }, text));
  },

  // Use of each round's time.

  partsOf(round) {
    // parts of a round: [lane, begin, end]
    const end = round.ended_at ?? this.end, { started_at: started, detecting_s: stood, lost_s: lost } = round;
    const parts = [["forming", round.opened_at, started ?? end]];
    if (started === null) return parts;
    parts.push(["running", started, end], ["starting", started, Math.min(end, started + round.starting_s)]);
    parts.push(["lost work", end - stood - lost, end - stood], ["standing still", end - stood, end]);
    return parts.filter(([, from, to]) => to > from);
  },

  shares(round) {
    // share of each lane in the time of several rounds
    const whole = (round.ended_at ?? this.end) - round.opened_at || 1;
    const seconds = {
      forming: round.forming_s + round.waiting_s, running: round.running_s, checkpointing: round.checkpointing_s,
      "standing still": round.detecting_s, "lost work": round.lost_s,
    };
    return Object.entries(seconds).map(([lane, spent]) => [lane, Math.min(1, spent / whole)]).filter(([, share]) => share > 0);
  },

  drawLanes(shapes, y) {
    const top = {}, tall = this.LANE - 5;
    for (const lane of Object.keys(this.LANES)) {
      top[lane] = y;
      this.label(shapes, y + tall - 2, lane);
      shapes.push(this.shape("line", { class: "floor", x1: this.LABELS, x2: this.width - 8, y1: y + tall, y2: y + tall }));
      y += this.LANE;
    }
    const box = (lane, from, to, share, word = this.LANES[lane]) => {
      const x = this.x(from), width = Math.max(this.LEAST, this.x(to) - x), height = Math.max(2, tall * share);
      shapes.push(this.shape("rect", { x, y: top[lane] + tall - height, width, height, "data-fill": TONE_OF[word] }));
    };
    for (const round of this.data.rounds) {
      if (round.first !== round.last) {
        this.shares(round).forEach(([lane, share]) => box(lane, round.opened_at, round.ended_at ?? this.end, share));
      } else {
        this.partsOf(round).forEach(([lane, from, to]) => (lane === "starting" ? box("running", from, to, 0.5, lane) : box(lane, from, to, 1)));
      }
    }
    const alone = new Set(this.data.rounds.filter((round) => round.first === round.last).map((round) => round.first));
    for (const { at, round, checkpointing_s: saving } of this.data.samples) {
      if (saving > 0 && alone.has(round)) box("checkpointing", at - saving, at, 1);
    }
    return y;
  },

  // Events.

  drawMarks(shapes, y) {
    for (const [lane, [name, tone]] of Object.entries(this.MARKS)) {
      const marks = this.data.marks.filter((mark) => mark.lane === lane);
      if (!marks.length) continue;
      this.label(shapes, y + 11, name);
      for (const { at, until } of marks) {
        const x = this.x(at), to = Math.max(x, this.x(until)), mid = y + 7;
        const points = { fault: `${x - 5},${mid + 5} ${x + 5},${mid + 5} ${x},${mid - 5}`, action: `${x - 4},${mid - 4} ${x + 4},${mid - 4} ${x + 4},${mid + 4} ${x - 4},${mid + 4}` };
        const diamond = `${x},${mid - 5} ${x + 5},${mid} ${x},${mid + 5} ${x - 5},${mid}`;
        if (to > x + 3) shapes.push(this.shape("line", { class: "burst", "data-fill": tone, x1: x, x2: to, y1: mid, y2: mid }));
        shapes.push(lane === "node" ? this.shape("circle", { cx: x, cy: mid, r: 4, "data-fill": tone }) : this.shape("polygon", { points: points[lane] || diamond, "data-fill": tone }));
      }
      y += this.LANE;
    }
    return y;
  },

  worded({ kind, count, node_id: node }) {
    return `${count > 1 ? `${count} × ` : ""}${worded(kind)}${node && count === 1 ? ` (${node})` : node ? ` (${node} first)` : ""}`;
  },

  // Progress.

  drawCharts(shapes, y) {
    const { samples } = this.data;
    if (!samples.length) return y;
    const fastest = Math.max(...samples.map((sample) => sample.steps_per_s || 0));
    if (fastest) {
      y = this.chart(shapes, y, "steps a second", fastest, this.number(fastest));
      const height = (rate) => y - 6 - (this.CHART - 18) * (rate / fastest);
      let path = "";
      samples.forEach((sample, index) => {
        if (sample.steps_per_s === null || !index) return;
        const before = samples[index - 1], goesOn = before.steps_per_s !== null && before.round === sample.round;
        path += `${goesOn ? "L" : "M"}${this.x(before.at).toFixed(1)} ${height(sample.steps_per_s).toFixed(1)}H${this.x(sample.at).toFixed(1)}`;
      });
      shapes.push(this.shape("path", { class: "curve", d: path }));
    }
    const highest = Math.max(1, ...samples.map((sample) => sample.step));
    y = this.chart(shapes, y, "step", highest, this.number(highest));
    const height = (step) => y - 6 - (this.CHART - 18) * (step / highest);
    const line = samples.map((sample, index) => {
      const goesOn = index && samples[index - 1].round === sample.round;
      return `${goesOn ? "L" : "M"}${this.x(sample.at).toFixed(1)} ${height(sample.step).toFixed(1)}`;
    });
    shapes.push(this.shape("path", { class: "curve", d: line.join("") }));
    const saved = samples.filter((sample) => sample.checkpoint_step !== null);
    if (saved.length) {
      const stairs = saved.map((sample, index) => `${index ? "H" : "M"}${this.x(sample.at).toFixed(1)}${index ? "V" : " "}${height(sample.checkpoint_step).toFixed(1)}`);
      shapes.push(this.shape("path", { class: "saved", d: `${stairs.join("")}H${this.x(this.end).toFixed(1)}` }));
      shapes.push(this.shape("text", { x: 0, y: y - 8, class: "lane dashed" }, "- - checkpoint"));
    }
    return y;
  },

  chart(shapes, y, name, most, text) {
    this.label(shapes, y + 14, name);
    shapes.push(this.shape("text", { x: this.LABELS - 4, y: y + 28, class: "most" }, text));
    shapes.push(this.shape("line", { class: "floor", x1: this.LABELS, x2: this.width - 8, y1: y + this.CHART - 6, y2: y + this.CHART - 6 }));
    return y + this.CHART;
  },

  number: (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)))),

  pace(rate) {
    if (rate === 0) return "no steps";
    return rate >= 1 ? `${this.number(rate)} steps a second` : `${this.number(1 / rate)} s a step`;
  },

  // Time.

  drawAxis(shapes, y) {
    const most = Math.max(2, Math.floor((this.width - this.LABELS) / 110)), length = this.end - this.begin;
    const every = this.STEPS_S.find((step) => length / step <= most) || length / most;
    const offset = isUtc() ? 0 : -60 * new Date(this.begin * 1000).getTimezoneOffset(); // whole hours and days of the viewer
    let day = "";
    for (let at = Math.ceil((this.begin + offset) / every) * every - offset; at <= this.end; at += every) {
      const x = this.x(at), { date, time } = moment(at);
      const text = date === day && every < 86400 ? time.slice(0, every < 60 ? 8 : 5) : `${date.slice(5)}${every < 86400 ? ` ${time.slice(0, every < 60 ? 8 : 5)}` : ""}`;
      day = date;
      shapes.push(this.shape("line", { class: "tick", x1: x, x2: x, y1: 0, y2: y }));
      if (x < this.width - (text.length < 9 ? 24 : 44)) shapes.push(this.shape("text", { x, y: y + 14, class: "time" }, text));
    }
    this.label(shapes, y + 14, moment(this.begin).zone);
    return y + 20;
  },

  // What is known about one moment.

  findPoints() {
    const { rounds, samples, marks } = this.data;
    const times = [this.begin, this.end, ...samples.map((each) => each.at), ...marks.map((each) => each.at)];
    for (const { opened_at: opened, started_at: started, ended_at: ended } of rounds) times.push(opened, started ?? opened, ended ?? opened);
    this.points = [...new Set(times.map((at) => Math.min(this.end, Math.max(this.begin, at))))].sort((one, other) => one - other);
  },

  nearest(at) {
    let best = 0;
    this.points.forEach((point, index) => {
      if (Math.abs(point - at) < Math.abs(this.points[best] - at)) best = index;
    });
    return best;
  },

  choose(index, isShown = true) {
    this.index = isShown ? index : null;
    const at = this.points[index], says = this.tell(at), slider = byId("timeline"), x = isShown ? this.x(at) : -9;
    slider.setAttribute("aria-valuemax", this.points.length - 1);
    slider.setAttribute("aria-valuenow", index);
    slider.setAttribute("aria-valuetext", says);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    fill(byId("timeline-says"), says);
  },

  tell(at) {
    const { rounds, samples, marks } = this.data, near = (4 * (this.end - this.begin)) / this.width;
    const round = rounds.findLast((each) => each.opened_at <= at) || rounds[0];
    const isLast = at >= this.end, isOver = isLast && this.data.ended_at, said = [stamp(at)];
    if (round.first === round.last) {
      const inside = this.partsOf(round).filter(([, from, to]) => from <= at && (at < to || (isLast && to >= at))).map(([lane]) => lane);
      const doing = isOver ? "over" : inside.at(-1) || "over";
      said.push(`round ${round.first}: ${doing === "lost work" ? "work that was lost" : doing}`);
    } else {
      said.push(`rounds ${round.first} to ${round.last}: ${this.shares(round).map(([lane, share]) => `${Math.round(100 * share)} % ${lane}`).join(", ")}`);
    }
    const next = samples.find((each) => each.at >= at), last = samples.findLast((each) => each.at <= at), sample = next || last;
    if (sample && !isOver && sample.steps_per_s !== null && (next ? next.round === (last || next).round : true)) said.push(this.pace(sample.steps_per_s));
    if (last) said.push(`step ${last.step}`);
    if (last) said.push(last.checkpoint_step === null ? "no checkpoint yet" : `last checkpoint at step ${last.checkpoint_step}`);
    marks.filter((mark) => mark.at - near <= at && at <= mark.until + near).forEach((mark) => said.push(this.worded(mark)));
    return said.join(" · ");
  },

  move(event) {
    const last = this.points.length - 1, from = this.index ?? last;
    const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1, PageDown: from - 10, PageUp: from + 10, Home: 0, End: last }[event.key];
    if (to === undefined || !this.data) return;
    event.preventDefault();
    this.choose(Math.min(last, Math.max(0, to)));
  },

  point({ clientX }) {
    if (!this.data) return;
    const { left, width } = byId("timeline").firstChild.getBoundingClientRect();
    const share = ((clientX - left) * (this.width / width) - this.LABELS) / (this.width - this.LABELS - 8);
    this.choose(this.nearest(this.begin + share * (this.end - this.begin)));
  },

  // The same data as a table.

  drawTable() {
    const { rounds, samples, marks } = this.data;
    byId("timeline-rows").replaceChildren(...rounds.map((round) => {
      const until = round.ended_at ?? this.end, those = samples.filter((each) => each.round >= round.first && each.round <= round.last);
      const [first, last] = [those[0], those.at(-1)];
      const rate = round.first === round.last && last && last.at > first.at ? (last.step - first.step) / (last.at - first.at) : null;
      const seconds = (value) => (value ? duration(value) : "");
      const happened = marks.filter(({ at }) => at >= round.opened_at && (at < until || round.ended_at === null || at >= this.end));
      return line(10, [
        round.first === round.last ? `${round.first}` : `${round.first} to ${round.last}`, stamp(round.opened_at), seconds(round.forming_s + round.waiting_s),
        seconds(round.running_s), seconds(round.checkpointing_s), seconds(round.detecting_s), seconds(round.lost_s),
        rate === null ? "" : this.pace(rate), last ? `${last.step}` : "", last && last.checkpoint_step !== null ? `${last.checkpoint_step}` : "",
        happened.map((mark) => `${this.worded(mark)}, ${moment(mark.at).time}`).join("; "),
      ]);
    }).reverse());
  },
};

const chart = document.getElementById("timeline");
chart.addEventListener("keydown", (event) => timeline.move(event));
chart.addEventListener("pointermove", (event) => timeline.point(event));
chart.addEventListener("pointerdown", (event) => timeline.point(event));
chart.addEventListener("focus", () => timeline.data && timeline.choose(timeline.index ?? timeline.points.length - 1));
new ResizeObserver(() => timeline.data && chart.clientWidth !== timeline.width && timeline.draw()).observe(chart);
