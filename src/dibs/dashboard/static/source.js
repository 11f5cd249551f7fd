// Where the page's data come from: one stream, and polling where a proxy keeps its events back.
//
// A view change closes the stream and opens another. A hidden tab has none. When the server is gone, the page asks
// again every two seconds until it is back.

const QUIET = 15_000; // without an event for so long, the stream is not trusted: the server sends one after each sample
const AGAIN = 2_000;
const POLLS_BEFORE_STREAM = 30;

export class Source {
  #on;
  #params = null;
  #stream = null;
  #timers = { open: 0, quiet: 0, poll: 0 };
  #pollsLeft = 0; // until the stream is tried again: after a silent one a minute's worth, after a failed one none
  #generation = 0; // of the view: answers to questions about an earlier one are dropped

  /** Callbacks: view, lock, asOf (data), state (see `STATES` in app.js; a sentence or ""). */
  constructor(on) {
    this.#on = on;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
  }

  /** Show that view, after a moment: while someone types or scrolls, only the last one is asked for. */
  show(params, moment = 0) {
    this.#params = params;
    clearTimeout(this.#timers.open);
    this.#timers.open = setTimeout(() => this.#open(), moment);
  }

  #close() {
    this.#generation += 1;
    this.#stream?.close();
    this.#stream = null;
    for (const timer of Object.values(this.#timers)) clearTimeout(timer);
  }

  #open() {
    this.#close();
    if (document.hidden || this.#params === null) return;
    const stream = new EventSource(`api/stream?${new URLSearchParams(this.#params)}`);
    this.#stream = stream;
    const listen = (event, tell) =>
      stream.addEventListener(event, (message) => {
        if (stream !== this.#stream) return;
        const data = JSON.parse(message.data);
        this.#heard();
        tell(data);
      });
    listen("view", this.#on.view);
    listen("lock", this.#on.lock);
    listen("as_of", this.#on.asOf);
    stream.onerror = () => {
      if (stream !== this.#stream) return;
      // The browser asks again by itself, unless the answer was no stream: then polling finds out the reason.
      if (stream.readyState !== EventSource.CLOSED) this.#on.state("reconnecting", "");
      else this.#pollAfter(AGAIN);
    };
    this.#waitForEvents();
  }

  #heard() {
    this.#on.state("live", "");
    this.#waitForEvents();
  }

  #waitForEvents() {
    clearTimeout(this.#timers.quiet);
    this.#timers.quiet = setTimeout(() => {
      this.#pollsLeft = POLLS_BEFORE_STREAM;
      this.#pollAfter(0);
    }, QUIET);
  }

  #pollAfter(ms) {
    this.#stream?.close();
    this.#stream = null;
    clearTimeout(this.#timers.quiet);
    clearTimeout(this.#timers.poll);
    this.#timers.poll = setTimeout(() => this.#poll(), ms);
  }

  async #poll() {
    const generation = this.#generation;
    const asked = this.#params.key ? ["view", "lock"] : ["view"];
    const query = new URLSearchParams(this.#params);
    const answers = await Promise.all(asked.map((what) => ask(`api/${what}?${query}`)));
    if (generation !== this.#generation) return;
    const failure = answers.find(({ data }) => data === null);
    if (failure !== undefined) {
      this.#on.state(stateAfter(failure), failure.error);
      this.#pollAfter(AGAIN);
      return;
    }
    this.#on.state("polling", "");
    answers.forEach(({ data }, i) => this.#on[asked[i]](data));
    this.#pollsLeft -= 1;
    if (this.#pollsLeft > 0) this.#pollAfter(AGAIN);
    else this.#open();
  }
}

/** "wrong": the server has no such thing; or a proxy answers while the server is away. */
export function stateAfter({ status }) {
  if (status === 401) return "refused";
  return status === 400 || status === 404 ? "wrong" : "reconnecting";
}

/** `{data}`, or `{data: null, error, status}`: the sentence of the server if it gave one. */
export async function ask(address, options = {}) {
  let status = 0;
  try {
    const answer = await fetch(address, { cache: "no-store", ...options });
    status = answer.status;
    const data = await answer.json();
    if (answer.ok) return { data, error: "", status };
    return { data: null, error: String(data.error ?? `status ${status}`), status };
  } catch {
    return { data: null, error: "", status };
  }
}
