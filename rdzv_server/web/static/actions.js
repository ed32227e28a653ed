// Asks for the fields of an operator's action, shows what it costs, and has it carried out. It is loaded before page.js,
// and calls functions of page.js only later.
"use strict";

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
  for (const input of numbers()) {
    input.value = shown.run[input.name];
    input.oninput = () => drawCost(button);
  }
  notice("");
  drawCost(button);
  const requestId = crypto.getRandomValues(new Uint32Array(4)).join("-"); // the same for all attempts, so that the action is carried out once
  dialog.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    act(button, asks, { request_id: requestId, ...seen, ...(node ? { node_id: node } : { run_id: runId }) });
  };
  dialog.showModal();
}

const numbers = () => byId("dialog").querySelectorAll("[data-ask]:not([hidden]) input[type=number]"); // they change the run

let costOf = null; // action and numbers whose cost is wanted

async function drawCost(button) {
  const query = new URLSearchParams({ action: button.dataset.path.split("/").at(-1) });
  if (button.dataset.node) query.set("node_id", button.dataset.node);
  else query.set("run_id", runId);
  numbers().forEach((input) => query.set(input.name, input.value || 0));
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
