// The page of one lock: holders, queue, timeline, history, commands, and the form that breaks a hold.

import { command, el, find, isNew, keyed, put } from "./dom.js";
import { LeaseBar, ageSince } from "./lease.js";
import { ask } from "./source.js";
import { kindOf, used } from "./table.js";
import { gauge, timeline } from "./timeline.js";
import { clockTime, count, duration, shortToken } from "./words.js";

const WHAT = {
  acquired: "acquired it",
  released: "no longer holds it",
  expired: "did not renew: its lease ended",
  waiting: "joined the queue",
  left: "left the queue",
  broken: "lost it: the hold was broken",
};

const sentence = (text) => (text.endsWith(".") ? text : `${text}.`);

function details(person) {
  const pairs = [["thread", person.thread], ...person.info].filter(([, value]) => value !== "");
  if (pairs.length === 0) return "";
  const lines = pairs.flatMap(([key, value]) => [el("dt", { text: key }), el("dd", { text: value })]);
  return el("dl", { class: "info" }, ...lines);
}

/** The side of a read-write lock, or the permits of a semaphore. */
function share({ weight }, row) {
  if (row?.kind === "rw") return weight >= row.capacity ? "write" : "read";
  return weight > 1 ? `${weight} permits` : "";
}

function personCard(person) {
  const card = el("li", { class: "person" });
  card.place = el("span", { class: "place" });
  card.since = ageSince(person.since);
  card.lease = new LeaseBar();
  card.share = el("span", { class: "weight" });
  const who = el("strong", { class: "who", text: person.who });
  const token = el("span", { class: "token", text: person.token === null ? "" : `token ${person.token}` });
  card.append(el("p", { class: "line" }, card.place, who, card.since, card.share, token, card.lease.node), details(person));
  return card;
}

function cards(list, persons, asOf, leases, row) {
  const counted = persons.map((person, i) => ({ person, i }));
  const key = ({ person }) => `${person.token} ${person.who} ${person.since}`;
  const make = ({ person }) => personCard(person);
  keyed(list, counted, key, make, (card, { person, i }) => {
    put(card.place, leases === null ? `${i + 1}.` : "");
    put(card.share, share(person, row));
    card.lease.node.hidden = leases === null;
    if (leases !== null) card.lease.set(person.remaining, Math.max(leases, person.remaining), asOf);
    card.since.tick();
  });
}

export class LockPage {
  #commands = { show: command("the command that shows this lock"), break: command("the command that breaks the hold") };
  #data = null;
  #store = "0";
  #csrf = null;

  constructor() {
    find("commands").append(this.#commands.show, this.#commands.break);
    find("break-open").addEventListener("click", () => this.#openDialog());
    find("break-cancel").addEventListener("click", () => find("break-dialog").close());
    find("break-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#break();
    });
  }

  /** Another lock, before anything is known about it. */
  clear(store) {
    this.#store = store;
    this.#data = null;
    find("break-dialog").close();
    put(find("lock-name"), "…");
    put(find("lock-state"), "");
    put(find("break-result"), "");
    put(find("lock-broken"), "");
    find("lock-body").hidden = true;
  }

  /** Breaking is off unless the server was started with it. */
  allowBreak(csrf) {
    this.#csrf = csrf;
    find("break").hidden = csrf === null;
  }

  show(data) {
    this.#data = data;
    const { row, holders, queue } = data;
    find("lock-body").hidden = false;
    put(find("lock-name"), data.name);
    put(find("lock-state"), this.#state());
    find("lock-state").className = `state ${row?.trouble ? "troubled" : holders.length > 0 ? "held" : "free"}`;
    put(find("lock-broken"), data.broken ?? "");
    this.#people("holders", holders, row?.holders ?? 0, row?.lease ?? 0);
    this.#people("queue", queue, row?.waiters ?? 0, null);
    find("gauge").hidden = !(row?.kind === "semaphore");
    if (row?.kind === "semaphore") gauge(find("gauge"), row.capacity, used(row), row.waiters);
    timeline(find("lanes"), find("lanes-axis"), data.lanes, data.as_of);
    this.#history();
    for (const [line, text] of [[this.#commands.show, data.command], [this.#commands.break, data.break_command]]) {
      line.hidden = text === null;
      put(line.firstChild, text ?? "");
    }
    find("break-open").disabled = !data.can_break;
  }

  /** The server sends the first of them only: `number` is how many there are. */
  #people(id, persons, number, lease) {
    const more = number - persons.length;
    put(find(`${id}-title`), `${id === "queue" ? "Queue" : "Holders"} (${number})`);
    find(`${id}-none`).hidden = number > 0;
    cards(find(id), persons, this.#data.as_of, lease, this.#data.row);
    put(find(`${id}-more`), more > 0 ? `${more} more are not listed.` : "");
  }

  #state() {
    const { row } = this.#data;
    if (row?.trouble) return row.trouble;
    if (row === null) return "free";
    const waits = row.waiters > 0 ? `, ${count(row.waiters, "waiter")}` : "";
    return `${kindOf(row)}: ${row.holders > 0 ? "held" : "free"}${waits}`;
  }

  #history() {
    const list = find("history");
    const { history } = this.#data;
    find("history-none").hidden = history.length > 0;
    if (!isNew(list, history)) return;
    list.replaceChildren(
      ...history.map(({ at, what, who, token, seconds }) => {
        const bad = what === "expired" || what === "broken";
        const after = seconds > 0 ? ` after ${duration(seconds)}` : "";
        const facts = `${WHAT[what] ?? what}${after}${token ? ` (token ${shortToken(token)})` : ""}`;
        const time = el("time", { datetime: at, text: clockTime(Date.parse(at)) });
        const event = el("span", { title: token ? `token ${token}` : null, text: facts });
        return el("li", { class: bad ? "bad" : "" }, time, el("span", { class: "who", text: who }), event);
      }),
    );
  }

  /** The dialog keeps the tokens that it was opened with: they are what the reader confirms. */
  #openDialog() {
    const choice = ({ token, who }) => el("option", { value: token, text: `token ${token}: ${who}` });
    find("break-token").replaceChildren(...this.#data.holders.map(choice));
    put(find("break-name"), this.#data.name);
    put(find("break-result"), "");
    put(find("break-error"), "");
    find("break-dialog").showModal();
    find("break-reason").focus();
  }

  async #break() {
    const token = Number(find("break-token").value);
    const reason = find("break-reason").value.trim();
    if (reason === "") {
      put(find("break-error"), "Give a reason: it is written into the record of the break.");
      find("break-reason").focus();
      return;
    }
    const key = this.#data.key;
    const button = find("break-confirm");
    button.disabled = true;
    const answer = await ask("api/break", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Dibs-CSRF": this.#csrf },
      body: JSON.stringify({ store: this.#store, key, token, reason }),
    });
    button.disabled = false;
    if (this.#data?.key !== key) return;
    if (answer.data === null) {
      put(find("break-error"), `${sentence(answer.error || "The server did not answer")} ${this.#now()}`);
      return;
    }
    find("break-dialog").close();
    find("break-reason").value = "";
    put(find("break-result"), answer.data.done);
  }

  /** What holds now, after a refusal. */
  #now() {
    const { holders } = this.#data;
    if (holders.length === 0) return "Nobody holds the lock now.";
    return `Held now by ${holders.map(({ who, token }) => `${who} with token ${token}`).join(", ")}.`;
  }
}
