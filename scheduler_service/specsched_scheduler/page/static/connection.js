// The stream of events: opened, watched, opened again.

import { merged } from "./state.js";

const SILENCE_MS = 10_000;
const RETRY_MS = 3_000;

/**
 * Calls onState(state) with each look at the scheduler, and onConnection(word, since) with
 * "live", "silent" (it answers, without news), "lost", "full" or "ended"; since: a Date.
 */
export class Connection {
  #onState;
  #onConnection;
  #source = null;
  #state = null;
  #word = "connecting";
  #silence = 0;
  #retry = 0;

  constructor(onState, onConnection) {
    this.#onState = onState;
    this.#onConnection = onConnection;
  }

  open() {
    clearTimeout(this.#retry);
    this.#source?.close();
    const source = new EventSource("/page/events");
    this.#source = source;
    source.addEventListener("whole", (event) => this.#take(JSON.parse(event.data)));
    source.addEventListener("change", (event) => this.#take(merged(this.#state, JSON.parse(event.data))));
    source.addEventListener("beat", () => this.#tell("silent"));
    source.addEventListener("end", () => this.#again("ended"));
    source.addEventListener("full", () => this.#again("full"));
    source.addEventListener("error", () => this.#again(this.#word === "ended" ? "ended" : "lost"));
    this.#watch();
  }

  #take(state) {
    this.#state = state;
    this.#tell("live");
    this.#onState(state);
  }

  #tell(word) {
    this.#watch();
    this.#say(word);
  }

  #say(word) {
    if (word === this.#word) return;
    this.#word = word;
    this.#onConnection(word, new Date());
  }

  #watch() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#again("lost"), SILENCE_MS);
  }

  #again(word) {
    clearTimeout(this.#silence);
    this.#source?.close();
    this.#say(word);
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.open(), RETRY_MS);
  }
}
