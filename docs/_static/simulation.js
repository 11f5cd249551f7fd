/* The simulation of docs/simulation.md: four workers, one lock, one counter.
 *
 * The model is plain data. `create(settings)` makes one, `act(model, event)` and `step(model, ms)` change it. They read
 * no clock and no random number: the same calls give the same model, and `step` may be cut into pieces of any length.
 * The view below the model draws it and turns clicks into events. `window.dibsSimulation` has the three functions.
 */
(() => {
  "use strict";

  // ---- The model. Times are milliseconds since the start. ----

  const NAMES = ["Ana", "Bob", "Cleo", "Dan"];
  const WORK = 5000; // between reading the counter and writing it
  const REST = 3000; // between releasing the lock and asking for it again
  const WAITING_LEASE = 5000; // dibs keeps a waiter for 5 s without renewal, or for its lease if that is shorter
  const SPAN = 40000; // what the chart shows
  const LOG_LENGTH = 200;

  const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
  const ownDeadline = (sent, lease) => sent + lease - Math.max(lease / 10, 50); // as in src/dibs/core/deadline.py
  const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  function create({ lease = 6000, fence = false, script = [] } = {}) {
    const worker = (name, index) => ({
      name,
      life: "running", // or "paused", "crashed"
      doing: "resting", // or "waiting", "holding": what the worker itself believes
      due: 1000 * (index + 1), // its next action, or what was left until then when it was paused
      claim: null, // the same object as in the store's queue, while it is there
      renewAt: Infinity,
      deadline: Infinity, // the holder's own
      lost: false, // the deadline has passed
      read: 0,
      wrote: false,
      history: [{ from: 0, what: "resting" }],
    });
    return {
      now: 0,
      lease, // of the next acquire
      script: [...script], // of a guided scenario: events with the time `at` which they happen
      ended: false, // `step` has come to the end of the script
      caption: "",
      workers: NAMES.map(worker),
      queue: [], // the store's: the first claim holds the lock
      lastToken: 0,
      resource: { value: 0, fence, highest: 0, accepted: 0, last: null, writes: [] },
      log: [],
      logged: 0,
    };
  }

  function tell(model, text, kind = "event") {
    model.log.push({ number: (model.logged += 1), at: model.now, text, kind });
    if (model.log.length > LOG_LENGTH) model.log.shift();
  }

  const isQueued = (model, claim) => claim !== null && model.queue.includes(claim);

  function renew(model, worker) {
    const { claim } = worker;
    const holds = worker.doing === "holding";
    claim.span = holds ? claim.lease : Math.min(claim.lease, WAITING_LEASE);
    claim.expires = model.now + claim.span;
    worker.renewAt = model.now + claim.span / 3; // the watchdog
    worker.deadline = holds ? ownDeadline(model.now, claim.lease) : Infinity;
    worker.lost = false;
  }

  function join(model, worker) {
    worker.claim = { name: worker.name, token: (model.lastToken += 1), lease: model.lease, orphan: false };
    worker.doing = "waiting";
    worker.due = Infinity;
    model.queue.push(worker.claim);
    renew(model, worker);
    const place = model.queue.length;
    tell(model, `${worker.name} asks for the lock${place > 1 ? ` and waits: place ${place} in the queue` : ""}.`);
  }

  function leave(model, worker) {
    model.queue = model.queue.filter((claim) => claim !== worker.claim);
    worker.claim = null;
    worker.renewAt = worker.deadline = Infinity;
    worker.doing = "resting";
    worker.due = model.now + REST;
  }

  /** The first claim of the queue holds. Its worker takes the lock, unless nobody is there to notice. */
  function grant(model) {
    const claim = model.queue[0];
    const worker = model.workers.find((one) => one.claim === claim && one.life === "running");
    if (claim === undefined || worker === undefined || worker.doing !== "waiting") return;
    worker.doing = "holding";
    worker.due = model.now + WORK;
    worker.wrote = false;
    renew(model, worker);
    worker.read = model.resource.value;
    model.resource.highest = Math.max(model.resource.highest, claim.token);
    tell(model, `${worker.name} holds the lock with token ${claim.token} and reads ${worker.read}.`, "grant");
  }

  function write(model, worker) {
    const { resource, now: at } = model;
    const { name, claim: { token } } = worker;
    const value = worker.read + 1;
    const result = token >= resource.highest ? "accepted" : resource.fence ? "refused" : "damage";
    const text = {
      accepted: `Accepted: ${name} writes ${value} with token ${token}.`,
      refused: `Refused: ${name} writes ${value} with stale token ${token}. The fence has seen ${resource.highest}.`,
      damage: `Damage: ${name} writes ${value} over ${resource.value} with stale token ${token}. It is accepted.`,
    }[result];
    worker.wrote = true;
    resource.last = { at, name, result, text };
    resource.writes.push(resource.last);
    if (result !== "refused") {
      resource.value = value;
      resource.accepted += 1;
    }
    tell(model, text, result);
  }

  const ACTIONS = {
    crash(model, worker) {
      worker.life = "crashed";
      if (worker.claim) worker.claim.orphan = true;
      const queued = isQueued(model, worker.claim);
      const stays = queued ? ` Its claim stays in the store until ${seconds(worker.claim.expires)}.` : "";
      tell(model, `${worker.name} crashes.${stays}`, "fault");
    },
    restart(model, worker) {
      Object.assign(worker, { life: "running", doing: "resting", due: model.now + 1000, claim: null });
      worker.renewAt = worker.deadline = Infinity;
      tell(model, `${worker.name} starts again, as a new process.`);
    },
    pause(model, worker) {
      worker.life = "paused";
      worker.due -= model.now;
      const next = worker.doing === "holding" && !worker.wrote ? " Its next line of code is the write." : "";
      tell(model, `${worker.name} is paused: the whole process stands still, its watchdog too.${next}`, "fault");
    },
    resume(model, worker) {
      worker.life = "running";
      worker.due += model.now;
      tell(model, `${worker.name} goes on and does not know that time has passed.`);
      if (worker.doing === "holding") {
        if (!worker.wrote) write(model, worker); // it looked before the pause, so it acts before it looks again
        if (model.now >= worker.deadline) {
          const given = isQueued(model, worker.claim) ? " dibs gives its claim back." : "";
          leave(model, worker);
          tell(model, `${worker.name} looks at its hold and is told: LockLost.${given}`, "lost");
        } else renew(model, worker);
      } else if (worker.doing === "waiting") {
        if (isQueued(model, worker.claim)) renew(model, worker);
        else {
          tell(model, `${worker.name} is no longer in the queue, because its waiting lease is over.`, "lost");
          join(model, worker);
        }
      }
    },
    lease(model, _, { ms }) {
      model.lease = ms;
      tell(model, `From the next acquire on, the lease is ${seconds(ms)}.`);
    },
    fence(model, _, { on }) {
      model.resource.fence = on;
      tell(model, on ? "The resource now refuses tokens lower than the highest one it has seen." :
        "The resource no longer compares tokens.");
    },
    caption(model, _, { text }) {
      model.caption = text;
      tell(model, text, "guide");
    },
    end(model) {
      model.ended = true;
    },
  };

  /** Something happens from outside: `{type, worker, ...}`, where `worker` is an index. */
  function act(model, event) {
    ACTIONS[event.type](model, model.workers[event.worker], event);
    grant(model);
    record(model);
    return model;
  }

  /** The next instant at which something happens by itself. */
  function nextInstant(model) {
    const times = [model.script.length ? model.script[0].at : Infinity, ...model.queue.map((claim) => claim.expires)];
    for (const worker of model.workers) {
      if (worker.life === "running") times.push(worker.due, worker.renewAt);
      else if (worker.life === "paused" && !worker.lost) times.push(worker.deadline);
    }
    return Math.min(...times);
  }

  function expire(model) {
    for (const claim of model.queue.filter((one) => one.expires <= model.now)) {
      const held = claim === model.queue[0];
      model.queue = model.queue.filter((one) => one !== claim);
      const freed = held ? "frees the lock" : "removes it from the queue";
      tell(model, `The lease of ${claim.name} is over: the store ${freed}.`, "lost");
    }
  }

  function proceed(model, worker) {
    if (worker.life === "paused" && !worker.lost && worker.deadline <= model.now) {
      worker.lost = true;
      tell(model, `${worker.name} passes its own deadline, nine tenths of the lease: its hold is no longer valid. ` +
        `The store gives the lock to nobody else before ${seconds(worker.claim.expires)}.`, "lost");
    }
    if (worker.life !== "running") return;
    if (worker.renewAt <= model.now) renew(model, worker);
    if (worker.due > model.now) return;
    if (worker.doing === "resting") join(model, worker);
    else {
      if (!worker.wrote) write(model, worker);
      leave(model, worker);
      tell(model, `${worker.name} releases the lock.`);
    }
  }

  /** What the chart shows of the past. */
  function record(model) {
    for (const { history, life, doing } of model.workers) {
      const what = life === "running" ? doing : life;
      if (history.at(-1).what !== what) history.push({ from: model.now, what });
      while (history.length > 1 && history[1].from < model.now - SPAN) history.shift();
    }
    model.resource.writes = model.resource.writes.filter((one) => one.at >= model.now - SPAN);
  }

  /** Let time pass. At the end of a script it stands still there, once. */
  function step(model, ms) {
    const end = model.now + ms;
    model.ended = false;
    for (let at = nextInstant(model); at <= end && !model.ended; at = nextInstant(model)) {
      model.now = at;
      while (model.script.length && model.script[0].at <= at) act(model, model.script.shift());
      expire(model);
      for (const worker of model.workers) proceed(model, worker);
      grant(model);
      record(model);
    }
    if (!model.ended) model.now = end;
    return model;
  }

  // ---- Guided scenarios ----

  const caption = (at, text) => ({ at, type: "caption", text });
  const paused = (fence, conclusion) => ({
    fence,
    script: [
      caption(0, `Ana takes the lock and reads the counter. The resource has ${fence ? "a" : "no"} fence.`),
      { at: 4000, type: "pause", worker: 0 },
      caption(4000, "Ana stands between its read and its write. Its lease drains, because nobody renews it."),
      caption(9500, "The lease of Ana is over, so Bob got the lock, with a higher token."),
      caption(19500, "Bob and Cleo have each added 1. Ana is about to go on."),
      { at: 20000, type: "resume", worker: 0 },
      caption(20000, `Ana wrote before it looked at its hold. ${conclusion}`),
      { at: 20500, type: "end" },
    ],
  });
  const SCENARIOS = {
    "Crash a holder": {
      script: [
        caption(0, "Ana takes the lock. Its watchdog renews the lease each time a third of it is over."),
        { at: 4500, type: "crash", worker: 0 },
        caption(4500, "Nobody renews the lease of Ana now. The others wait until it is over."),
        caption(9500, "The lease was over at 9.0 s. Bob was next in the queue and got a higher token."),
        { at: 10000, type: "end" },
      ],
    },
    "Pause a holder past its lease": paused(false, "The updates of Bob and Cleo are lost, without an error."),
    "Now with a fence": paused(true, "The fence saw a higher token before, so it refused. The counter is still 2."),
  };

  // ---- The view ----

  const maker = (create) => (tag, attributes = {}, ...children) => {
    const node = create(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const element = maker((tag) => document.createElement(tag));
  const shape = maker((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  const group = (title, ...children) => element("fieldset", {}, element("legend", {}, title), ...children);
  const section = (title, ...children) =>
    element("section", { "aria-label": title }, element("h3", {}, title), ...children);

  function button(label, action, attributes = {}) {
    const node = element("button", { type: "button", ...attributes }, label);
    node.addEventListener("click", action);
    return node;
  }
  /** Screen readers and selections are disturbed only by a text that has changed. */
  function say(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }
  function relabel(node, label, name) {
    say(node, label);
    node.setAttribute("aria-label", `${label} ${name}`);
  }

  function status(model, worker) {
    const { life, doing, claim, read } = worker;
    const queued = isQueued(model, claim);
    if (life === "crashed") return queued ? "Crashed. Its claim is still in the store." : "Crashed.";
    if (life === "paused" && doing === "holding") {
      if (!queued) return "Paused. Has lost the lock and cannot know it yet.";
      if (worker.lost) return "Paused. Past its own deadline: its hold is not valid.";
      return `Paused. Holds the lock with token ${claim.token}.`;
    }
    if (life === "paused") return doing === "waiting" && !queued ? "Paused. No longer in the queue." : "Paused.";
    if (doing === "waiting") return `Waits. Place ${model.queue.indexOf(claim) + 1} in the queue.`;
    if (doing === "holding") return `Holds the lock with token ${claim.token}. Has read ${read}.`;
    return "Works on something else.";
  }

  /** One worker: name, status, lease bar, two buttons. Gives a function that draws it. */
  function workerCard(index, perform, parent) {
    const name = NAMES[index];
    const toggle = (life, on, off) => () => perform((model) =>
      act(model, { type: model.workers[index].life === life ? off : on, worker: index }));
    const crash = button("Crash", toggle("crashed", "crash", "restart"));
    const pause = button("Pause", toggle("paused", "pause", "resume"));
    const text = element("p", { class: "sim-status" });
    const lease = element("p", { class: "sim-lease" });
    const bar = shape("svg", { class: "sim-bar", "aria-hidden": "true" });
    const fill = shape("rect", { height: "100%" });
    const marks = [66.7, 10].map((left) => shape("line", { x1: `${left}%`, x2: `${left}%`, y1: 0, y2: "100%" }));
    bar.append(fill, ...marks);
    const card = section(`Worker ${name}`, text, bar, lease, crash, pause);
    card.dataset.worker = name;
    parent.append(card);
    return (model) => {
      const worker = model.workers[index];
      const queued = isQueued(model, worker.claim);
      const left = queued ? worker.claim.expires - model.now : 0;
      card.dataset.life = worker.life;
      card.dataset.doing = worker.doing;
      card.dataset.valid = String(worker.doing === "holding" && worker.life !== "crashed" && !worker.lost);
      say(text, status(model, worker));
      say(lease, queued ? `Lease: ${seconds(left)} left` : "No lease");
      fill.setAttribute("width", `${queued ? (100 * left) / worker.claim.span : 0}%`);
      marks[1].setAttribute("visibility", worker.doing === "holding" ? "visible" : "hidden");
      relabel(crash, worker.life === "crashed" ? "Restart" : "Crash", name);
      relabel(pause, worker.life === "paused" ? "Resume" : "Pause", name);
      pause.disabled = worker.life === "crashed";
    };
  }

  function drawResource(model, panel) {
    const { value, fence, highest, accepted, last } = model.resource;
    say(panel.value, String(value));
    say(panel.fence, fence ? `Fence: refuses tokens lower than ${highest}.` : "No fence: accepts every token.");
    const lost = accepted > value ? `, ${counted(accepted - value, "update")} lost` : "";
    say(panel.count, `${counted(accepted, "write")} accepted${lost}.`);
    panel.last.dataset.result = last ? last.result : "";
    say(panel.last, last ? last.text : "");
  }

  function drawQueue(model, list) {
    const texts = model.queue.map((claim, place) =>
      `${claim.name}${place ? "" : `: lock, token ${claim.token}`}${claim.orphan ? " (crashed)" : ""}`);
    if (list.dataset.shown === texts.join("|")) return;
    list.dataset.shown = texts.join("|");
    list.replaceChildren(...texts.map((text) => element("li", {}, text)));
  }

  /** The last 40 seconds: a lane for each worker. Shapes differ, so that no meaning is in the colour alone. */
  function drawChart(model, chart) {
    const lane = 26;
    const left = 44;
    const width = Math.max(chart.clientWidth, 200) - left;
    const start = Math.max(0, model.now - SPAN);
    const x = (at) => left + (width * (Math.max(at, start) - start)) / SPAN;
    const parts = [];
    model.workers.forEach(({ name, history }, row) => {
      const middle = row * lane + lane / 2;
      parts.push(shape("text", { x: 0, y: middle + 4 }, name));
      history.forEach(({ from, what }, i) => {
        const to = i + 1 < history.length ? history[i + 1].from : model.now;
        const half = { holding: 9, waiting: 2, paused: 6, crashed: 6, resting: 0 }[what];
        if (half && to > start) {
          const box = { x: x(from), y: middle - half, width: x(to) - x(from), height: 2 * half };
          parts.push(shape("rect", { class: `sim-${what}`, ...box }));
        }
      });
      for (const one of model.resource.writes.filter((each) => each.name === name)) {
        const sign = { accepted: "\u2713", refused: "\u2715", damage: "!" }[one.result];
        parts.push(shape("text", { class: `sim-write sim-${one.result}`, x: x(one.at) - 4, y: middle + 5 }, sign));
      }
    });
    chart.setAttribute("height", NAMES.length * lane);
    chart.replaceChildren(...parts);
  }

  function drawLog(model, log) {
    const shown = Number(log.dataset.shown || 0);
    const fresh = model.log.filter((line) => line.number > shown);
    if (!fresh.length) return;
    log.dataset.shown = model.logged;
    log.append(...fresh.map(({ at, text, kind }) => element("p", { "data-kind": kind }, `${seconds(at)}: ${text}`)));
    while (log.children.length > LOG_LENGTH) log.firstChild.remove();
    log.scrollTop = log.scrollHeight;
  }

  function mount(root) {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)");
    let model = create();
    let running = false;
    let request = 0; // of the next frame
    let last = null; // the time of the previous frame

    const perform = (change) => { change(model); draw(); };
    const advance = (ms) => { step(model, ms); if (model.ended) running = false; draw(); };
    function run(on) {
      running = on;
      last = null;
      cancelAnimationFrame(request);
      if (on) request = requestAnimationFrame(frame);
      draw();
    }
    function frame(time) {
      last ??= time;
      const passed = Math.min((time - last) * Number(speed.value), 1000);
      if (passed >= (still.matches ? 1000 : 1)) { // in whole seconds for readers who want less motion
        last = time;
        advance(passed);
      }
      if (running) request = requestAnimationFrame(frame);
    }
    function load(settings, on) {
      model = create(settings);
      log.replaceChildren();
      log.dataset.shown = "0";
      advance(0);
      run(on);
    }

    const scenarios = Object.entries(SCENARIOS).map(([label, scenario]) =>
      button(label, () => load(scenario, !still.matches)));
    const go = button("Run", () => run(!running));
    const oneSecond = button("Step 1 s", () => { run(false); advance(1000); });
    const again = button("Start again", () => load({ lease: model.lease, fence: model.resource.fence }, false));
    const speeds = [0.5, 1, 3].map((value) => element("option", { value }, `${value}\u00d7`));
    const speed = element("select", { id: "sim-speed" }, ...speeds);
    speed.value = "1";
    const clock = element("output", { class: "sim-clock", "aria-live": "off" });
    const caption = element("p", { class: "sim-caption" });
    const lease = element("input", { type: "range", id: "sim-lease", min: 2, max: 12, step: 1 });
    const leaseText = element("output", { for: "sim-lease", "aria-live": "off" });
    const fence = element("input", { type: "checkbox", role: "switch", id: "sim-fence" });
    lease.addEventListener("input", () => perform((it) => act(it, { type: "lease", ms: 1000 * Number(lease.value) })));
    fence.addEventListener("change", () => perform((it) => act(it, { type: "fence", on: fence.checked })));
    const queue = element("ol", { class: "sim-queue" });
    const panel = {};
    for (const part of ["value", "last", "count", "fence"]) panel[part] = element("p", { class: `sim-${part}` });
    const chart = shape("svg", { class: "sim-chart", role: "img", "aria-label": "The last 40 s of each worker" });
    const log = element("div", { class: "sim-log", role: "log", tabindex: 0, "aria-label": "Events" });
    const cards = element("div", { class: "sim-workers" });
    const drawCards = NAMES.map((_, index) => workerCard(index, perform, cards));

    root.replaceChildren(
      group("Guided scenarios", ...scenarios),
      group("Time", go, oneSecond, again, element("label", { for: "sim-speed" }, "Speed"), speed, clock),
      group("Settings", element("label", { for: "sim-lease" }, "Lease"), lease, leaseText,
        element("span", {}, fence, element("label", { for: "sim-fence" }, "Fence at the resource"))),
      caption, cards,
      element("div", { class: "sim-pair" }, section("Queue in the store", queue),
        section("Resource: a counter", ...Object.values(panel))),
      chart,
      element("p", { class: "sim-legend" }, "Thick bar: holds. Thin bar: waits. Dashed: paused. Hollow: crashed. " +
        "\u2713 write accepted, \u2715 refused, ! stale and accepted."),
      element("h3", {}, "Events"), log);

    function draw() {
      say(go, running ? "Stop" : "Run");
      say(clock, seconds(model.now));
      say(caption, model.caption || "Choose a scenario, or press Run and then crash or pause a worker.");
      say(leaseText, `${model.lease / 1000} s, from the next acquire on`);
      lease.value = model.lease / 1000;
      fence.checked = model.resource.fence;
      for (const drawCard of drawCards) drawCard(model);
      drawQueue(model, queue);
      drawResource(model, panel);
      drawChart(model, chart);
      drawLog(model, log);
    }
    window.addEventListener("resize", draw);
    draw();
  }

  window.dibsSimulation = { create, act, step };
  const root = document.getElementById("dibs-simulation");
  if (root) mount(root);
})();
