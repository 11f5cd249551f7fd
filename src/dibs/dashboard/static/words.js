// Numbers and times as people read them. No figure here is ever negative.

export const atLeastZero = (value) => (Number.isFinite(value) && value > 0 ? value : 0);

/** The same forms as on the command line: 0.25 s, 5 s, 3m12s, 2h1m. */
export function duration(seconds) {
  const left = atLeastZero(seconds);
  if (left < 9.95) return `${left < 0.005 ? 0 : Number(left.toFixed(left < 0.95 ? 2 : 1))} s`;
  const whole = Math.round(left);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d${Math.floor((whole % 86400) / 3600)}h`;
}

/** An age that changes every second is shown in whole seconds. */
export const age = (seconds) => duration(Math.floor(atLeastZero(seconds)));

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const LONGEST_TOKEN = 6; // digits

/** The tokens of some stores have 16 digits; the last ones tell them apart. */
export function shortToken(token) {
  const digits = String(token);
  return digits.length > LONGEST_TOKEN ? `…${digits.slice(1 - LONGEST_TOKEN)}` : digits;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const clockTime = (ms) => CLOCK.format(new Date(ms));

/** The server's clock, by what it sent. Time on the way only makes it late, so the latest one counts. */
class Clock {
  #ahead = null;

  /** Forget: the server may be another one, or its clock was set. */
  reset() {
    this.#ahead = null;
  }

  heard(time) {
    const ahead = Date.parse(time) - performance.now();
    if (Number.isFinite(ahead)) this.#ahead = Math.max(this.#ahead ?? ahead, ahead);
  }

  /** Milliseconds since 1970. */
  now() {
    return this.#ahead === null ? Date.now() : performance.now() + this.#ahead;
  }

  secondsSince(time) {
    return atLeastZero((this.now() - Date.parse(time)) / 1000);
  }
}

export const clock = new Clock();
