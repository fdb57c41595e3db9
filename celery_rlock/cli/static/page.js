// Shows locks.json, again and again. Every text from there is foreign: it becomes text of the page, never markup.
"use strict";

const SHOWN_WAITERS = 3;
const SHOWN_HAPPENINGS = 5; // of each kind, so that many skips do not hide a loss
const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A text that did not change is left alone, so that a user can select it.
function write(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

function show(where, text) {
  write(where, text);
  where.hidden = !text;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0s";
  if (seconds < 0.0095) return "<10ms";
  if (seconds < 0.995) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
}

// In the list of locks a tenth of a second is exact enough.
const age = (seconds) => (seconds < 9.95 ? `${seconds.toFixed(1)}s` : duration(seconds));
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
const isToday = (seconds) => new Date(seconds * 1000).toDateString() === new Date().toDateString();
const moment = (seconds) => (isToday(seconds) ? "" : `${new Date(seconds * 1000).toLocaleDateString()} `) + clock(seconds);
const counted = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

// Rows keep their elements from one answer to the next, in the order of the answer.
function reconcile(body, known, items, keyOf, make, update) {
  const before = new Map(known);
  known.clear();
  let place = body.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (known.has(key)) continue;
    const row = before.get(key) || make(item);
    before.delete(key);
    known.set(key, row);
    update(row, item);
    if (row === place) place = place.nextSibling;
    else body.insertBefore(row, place);
  }
  for (const row of before.values()) row.remove();
}

function number(title, value, isBad) {
  const made = element("div", value === 0 ? "zero" : isBad ? "bad" : "");
  made.append(element("dt", "", title), element("dd", "", value.toLocaleString("en")));
  return made;
}

function showNumbers(data) {
  const states = data.survey.states;
  const counts = data.counts;
  const rare = ["failed", "rejected", "unavailable"].filter((what) => counts[what]);
  const numbers = [
    number("held", states.held || 0),
    number("waiting", data.survey.waiters),
    number("queued", states.queued || 0),
    number("resting", states.resting || 0),
    number("skipped in 30 min", counts.skipped || 0),
    number("lost in 30 min", counts.lost || 0, true),
    ...rare.map((what) => number(`${what} in 30 min`, counts[what], true)),
  ];
  byId("numbers").replaceChildren(...numbers);
}

function rectangle(className, x, width, height) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const attributes = { class: className, x, width, y: 100 - height, height };
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function showChart(figure, chart, slot, now) {
  const summary = chart.count
    ? `${counted(chart.count, "run")}, median ${duration(chart.median)}, longest ${duration(chart.longest)}`
    : "no runs";
  write(figure.querySelector("figcaption span"), summary);
  write(figure.querySelector(".scale"), chart.longest ? duration(chart.longest) : "");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${chart.slots.length} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", summary);
  chart.slots.forEach((found, index) => {
    if (found === null) return;
    const [count, median, longest] = found;
    const height = (seconds) => 2 + (chart.longest ? (80 * seconds) / chart.longest : 0);
    const hit = rectangle("hit", index, 1, 100);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    const at = clock((Math.floor(now / slot) - chart.slots.length + 1 + index) * slot);
    title.textContent = `${at}: ${counted(count, "run")}, median ${duration(median)}, longest ${duration(longest)}`;
    hit.append(title);
    svg.append(rectangle("longest", index + 0.1, 0.8, height(longest)));
    svg.append(rectangle("median", index + 0.1, 0.8, height(median)), hit);
  });
  const old = figure.querySelector("svg");
  if (old) old.replaceWith(svg);
  else figure.querySelector(".chart").append(svg);
}

const HOLDER = { held: "on", queued: "published by", resting: "ended on" };

function makeLock(lock) {
  const row = element("tr");
  const key = element("td");
  key.append(element("div", "name", lock.key), element("span", `state ${lock.state}`, lock.state));
  const holder = element("td");
  const task = element("div", "task", lock.task || "RLock");
  const where = element("div", "id", `${lock.task_id} ${HOLDER[lock.state]} ${lock.worker}`);
  holder.append(task, where, element("div", "line"));
  const held = element("td", "number held-for");
  held.dataset.title = "held for";
  const lease = element("td", "number lease-left");
  lease.dataset.title = "lease";
  const action = element("td", "action");
  const button = element("button", "", "Release …");
  button.type = "button";
  button.addEventListener("click", () => askToRelease(row.lock));
  action.append(button);
  row.append(key, holder, held, lease, action);
  return row;
}

function updateLock(row, lock) {
  row.lock = lock;
  const state = lock.waiters ? `${lock.state}, ${counted(lock.waiters, "waiter")}` : lock.state;
  write(row.querySelector(".state"), state);
  write(row.querySelector(".held-for"), age(lock.held_for));
  write(row.querySelector(".lease-left"), age(lock.lease_left));
  updateLine(row.querySelector(".line"), lock);
}

// The list is made anew only when other tasks wait. Otherwise only its times change.
function updateLine(line, lock) {
  const ids = JSON.stringify([lock.waiters, lock.in_line.map((waiter) => waiter.task_id)]);
  if (line.dataset.ids !== ids) {
    const wasOpen = Boolean(line.querySelector("details[open]"));
    line.dataset.ids = ids;
    line.replaceChildren(...waiterLists(lock, wasOpen));
  }
  const times = line.querySelectorAll("time");
  lock.in_line.forEach((waiter, index) => write(times[index], age(waiter.waits_for)));
  line.hidden = !lock.waiters;
}

function waiterLists(lock, isOpen) {
  const first = waiterList(lock.in_line.slice(0, SHOWN_WAITERS), 1);
  const rest = lock.waiters - Math.min(SHOWN_WAITERS, lock.in_line.length);
  if (rest <= 0) return [first];
  const details = element("details");
  details.open = isOpen;
  details.append(element("summary", "", `${rest.toLocaleString("en")} more`));
  details.append(waiterList(lock.in_line.slice(SHOWN_WAITERS), SHOWN_WAITERS + 1));
  const unlisted = lock.waiters - lock.in_line.length;
  if (unlisted > 0) details.append(element("p", "more quiet", `… and ${unlisted.toLocaleString("en")} that are not listed`));
  return [first, details];
}

function waiterList(waiters, start) {
  const list = element("ol");
  list.start = start;
  for (const waiter of waiters) {
    const item = element("li");
    item.append(element("span", "id", waiter.task_id), " ", element("time"));
    list.append(item);
  }
  return list;
}

function makeHappening(event) {
  const row = element("tr");
  const key = element("td");
  key.append(element("div", "name", event.key));
  const task = element("td");
  task.append(element("div", "task", event.task), element("div", "id", event.task_id));
  const because = element("td", "because");
  const held = ["skipped", "duplicate", "failed", "rejected"].includes(event.what);
  const by = event.what === "replaced" ? `by ${event.about}` : event.about;
  because.textContent = held ? `held by ${event.about}` : by;
  row.append(element("td", "when", moment(event.at)), element("td", `what ${event.what}`, event.what), key, task, because);
  return row;
}

let showsAll = false;

function showLately(data) {
  const counts = {};
  const few = data.lately.filter(({ what }) => (counts[what] = (counts[what] || 0) + 1) <= SHOWN_HAPPENINGS);
  const shown = showsAll ? data.lately : few;
  reconcile(byId("lately").tBodies[0], happenings, shown, JSON.stringify, makeHappening, () => {});
  byId("lately").hidden = !shown.length;
  byId("more").hidden = shown.length === data.lately.length;
  write(byId("show-all"), `Show all ${data.lately.length}`);
}

function leftOut(data) {
  const { matching, not_searched: unsearched } = data.left_out;
  const texts = [];
  if (matching) texts.push(`${counted(matching, "more lock")} not shown here: use the filter.`);
  if (unsearched) texts.push(`${counted(unsearched, "lock")} with fewer waiters or a shorter hold not searched: use celery rlock ls.`);
  if (data.survey.at !== null && !data.survey.complete) texts.push("The survey took too long and did not see all locks.");
  return texts.join(" ");
}

function problem(data) {
  const { at, error } = data.survey;
  const texts = [];
  if (error) texts.push(`Redis does not answer: ${error}.` + (at ? ` The locks below are those of ${clock(at)}.` : ""));
  if (!data.hears) texts.push("The exporter is not connected to the broker: times and the list of what happened lately stand still.");
  return texts.join(" ");
}

const locks = new Map();
const happenings = new Map();

function showData(data) {
  document.body.classList.toggle("read-only", !data.may_release);
  write(byId("app"), data.app);
  const states = data.survey.states;
  document.title = `${states.held || 0} held, ${data.survey.waiters} waiting` + (data.app ? ` – ${data.app}` : "");
  showNumbers(data);
  for (const name of ["wait", "hold"]) showChart(byId(name), data[name], data.slot, data.at);
  const identity = (lock) => JSON.stringify([lock.redis_key, lock.token, lock.owner]);
  reconcile(byId("locks").tBodies[0], locks, data.locks, identity, makeLock, updateLock);
  showLately(data);
  const filtered = Boolean(filter.value);
  byId("locks").hidden = !data.locks.length;
  const empty = data.survey.at === null ? "Looking …" : filtered ? "No lock matches." : "No lock is held.";
  show(byId("no-locks"), data.locks.length ? "" : empty);
  show(byId("left-out"), leftOut(data));
  const silent = !data.wait.count && !filtered ? " Workers report runs if they are started with -E." : "";
  const calm = filtered ? "Nothing that matches." : `No task was skipped, and no lock was lost.${silent}`;
  show(byId("nothing-lately"), data.lately.length ? "" : calm);
  show(byId("problem"), problem(data));
  const isLive = data.survey.at !== null && !data.survey.error;
  showLive(isLive, data.survey.at === null ? "waiting for the first survey" : `as of ${clock(data.survey.at)}`);
}

function showLive(isLive, text) {
  byId("dot").className = isLive ? "live" : "away";
  write(byId("live-text"), text);
}

const filter = byId("filter");
let timer;
let asked = 0;

async function refresh() {
  clearTimeout(timer);
  const mine = ++asked;
  let seconds = 2;
  try {
    const answer = await fetch(`locks.json?${new URLSearchParams({ filter: filter.value })}`, {
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(8000),
    });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const data = await answer.json();
    if (mine !== asked) return; // the filter has changed since
    seconds = data.refresh;
    showData(data);
  } catch (error) {
    if (mine !== asked) return;
    showLive(false, "no answer");
    show(byId("problem"), "The exporter does not answer. What you see is old.");
  }
  // A page in the background asks nothing.
  if (!document.hidden) timer = setTimeout(refresh, seconds * 1000);
}

const dialog = byId("release");
let seen;

function askToRelease(lock) {
  seen = { redis_key: lock.redis_key, owner: lock.owner, token: lock.token };
  write(byId("release-key"), lock.key);
  write(byId("release-holder"), `${lock.task || "RLock"}, ${lock.owner}`);
  show(byId("release-answer"), "");
  dialog.showModal();
}

async function release(event) {
  event.preventDefault();
  let text;
  try {
    const answer = await fetch("release", {
      method: "POST",
      credentials: "omit",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${byId("token").value}` },
      body: JSON.stringify(seen),
      signal: AbortSignal.timeout(8000),
    });
    const document = await answer.json();
    text = document.released ? "" : document.text;
  } catch (error) {
    text = "No answer. The list shows whether the lock is released.";
  }
  show(byId("release-answer"), text);
  if (!text) dialog.close();
  refresh();
}

dialog.querySelector("form").addEventListener("submit", release);
byId("show-all").addEventListener("click", () => {
  showsAll = true;
  refresh();
});
byId("keep").addEventListener("click", () => dialog.close());
filter.value = new URLSearchParams(location.search).get("filter") || "";
let typing;
filter.addEventListener("input", () => {
  const query = filter.value ? `?${new URLSearchParams({ filter: filter.value })}` : location.pathname;
  history.replaceState(null, "", query);
  clearTimeout(typing);
  typing = setTimeout(refresh, 200);
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
refresh();
