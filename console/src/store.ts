// All objects of a kind, kept current by a list and a watch. Shared by whoever shows them, and kept for a while when
// nobody does, so that going back and forth asks for nothing again.

import { useEffect, useReducer } from "preact/hooks";
import { get, Refusal } from "./api";
import { follow } from "./live";
import type { Resource } from "./objects";

const KEPT = 30_000;
const PAGE = 500;

interface List {
  metadata: { resourceVersion: string; continue?: string };
  items: Resource[];
}

const ONLY_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/** A change, all objects when they were read anew, or why they cannot be. */
export type Change = { type: "RESET"; items: Resource[] } | { type: "ERROR"; code: number; message: string } | { type: "ADDED" | "MODIFIED" | "DELETED"; object: Resource };

export class Collection {
  readonly items = new Map<string, Resource>();
  /** Whether it was read at least once. */
  known = false;
  problem: Refusal | null = null;
  /** Grows with everything that changes. */
  changes = 0;
  private version = "";
  private stop: (() => void) | null = null;
  private running = false;
  private users = new Set<() => void>();
  private observers = new Set<(change: Change) => void>();
  private told = false;
  private closing: number | undefined;
  private retry: number | undefined;
  private failures = 0;

  constructor(readonly path: string, readonly metadata = false) {}

  use(user: () => void): () => void {
    const own = () => user();
    this.users.add(own);
    clearTimeout(this.closing);
    if (!this.running) void this.read();
    return () => {
      this.users.delete(own);
      if (this.users.size > 0) return;
      clearTimeout(this.closing);
      this.closing = setTimeout(() => this.close(), KEPT);
    };
  }

  /** Tells every change, beginning with all objects, until the returned function is called. */
  observe(observer: (change: Change) => void): () => void {
    const leave = this.use(() => undefined);
    this.observers.add(observer);
    if (this.problem) observer({ type: "ERROR", code: this.problem.code, message: this.problem.message });
    else if (this.known) observer({ type: "RESET", items: this.all() });
    return () => {
      this.observers.delete(observer);
      leave();
    };
  }

  close(): void {
    clearTimeout(this.closing);
    clearTimeout(this.retry);
    this.stop?.();
    this.stop = null;
    this.running = false;
    collections.delete(keyOf(this.path, this.metadata));
  }

  /** Sorted by namespace and name. */
  all(): Resource[] {
    const key = (object: Resource) => `${object.metadata.namespace ?? ""}/${object.metadata.name}`;
    return [...this.items.values()].sort((a, b) => key(a).localeCompare(key(b)));
  }

  /** Takes what a write answered, so that pages need not wait for the watch. */
  put(object: Resource): void {
    const known = this.items.get(object.metadata.uid);
    // The watch may have been faster, also in saying that it is gone.
    if (!known || Number(known.metadata.resourceVersion) >= Number(object.metadata.resourceVersion)) return;
    this.items.set(object.metadata.uid, object);
    this.tell({ type: "MODIFIED", object });
  }

  private async read(): Promise<void> {
    this.running = true;
    try {
      const found = new Map<string, Resource>();
      let next = "";
      let list: List;
      do {
        const more = next ? `&continue=${encodeURIComponent(next)}` : "";
        list = await get<List>(`${this.path}${this.path.includes("?") ? "&" : "?"}limit=${PAGE}${more}`, this.metadata ? ONLY_METADATA : undefined);
        for (const item of list.items) found.set(item.metadata.uid, item);
        next = list.metadata.continue ?? "";
      } while (next);
      if (!this.running) return;
      this.items.clear();
      for (const [uid, item] of found) this.items.set(uid, item);
      this.version = list.metadata.resourceVersion;
      this.known = true;
      this.problem = null;
      this.failures = 0;
      this.tell({ type: "RESET", items: this.all() });
      this.watch();
    } catch (error) {
      this.problem = error instanceof Refusal ? error : new Refusal(0, String(error));
      this.tell({ type: "ERROR", code: this.problem.code, message: this.problem.message });
      this.again(() => void this.read());
    }
  }

  private watch(): void {
    const path = `${this.path}${this.path.includes("?") ? "&" : "?"}watch=1&allowWatchBookmarks=true&resourceVersion=${this.version}`;
    let gone = false;
    this.stop = follow(path, {
      line: (text) => {
        const { type, object } = JSON.parse(text) as { type: string; object: Resource };
        if (type === "ERROR") {
          gone = true;
          this.stop?.();
          this.stop = null;
          if (this.running) void this.read();
          return;
        }
        this.failures = 0;
        this.version = object.metadata.resourceVersion;
        if (type === "BOOKMARK") return;
        if (type === "DELETED") this.items.delete(object.metadata.uid);
        else this.items.set(object.metadata.uid, object);
        this.tell({ type: type as "ADDED" | "MODIFIED" | "DELETED", object });
      },
      end: (code, message) => {
        this.stop = null;
        if (!this.running || gone) return;
        if (code === 410) return void this.read();
        if (code >= 400) this.problem = new Refusal(code, message);
        this.again(() => (code >= 400 ? void this.read() : this.watch()));
      },
    }, this.metadata);
  }

  private again(what: () => void): void {
    this.failures += 1;
    const patience = Math.min(15_000, 300 * 2 ** Math.min(this.failures, 6));
    this.retry = setTimeout(() => this.running && what(), patience);
  }

  /** Many changes at once are shown once. */
  private tell(change: Change): void {
    this.changes += 1;
    for (const observer of this.observers) observer(change);
    if (this.told) return;
    this.told = true;
    setTimeout(() => {
      this.told = false;
      for (const user of this.users) user();
    }, 30);
  }
}

const collections = new Map<string, Collection>();

const keyOf = (path: string, metadata: boolean) => (metadata ? `${path}#metadata` : path);

export function collection(path: string, metadata = false): Collection {
  const key = keyOf(path, metadata);
  let found = collections.get(key);
  if (!found) collections.set(key, (found = new Collection(path, metadata)));
  return found;
}

/** Forgets everything: the session is over. */
export function forget(): void {
  for (const one of [...collections.values()]) one.close();
}

/** The objects at a path, live. */
export function useCollection(path: string, metadata = false): Collection {
  const [, show] = useReducer((count: number) => count + 1, 0);
  const found = collection(path, metadata);
  const shown = found.changes;
  useEffect(() => {
    const leave = found.use(() => show(0));
    // Nobody was told of what came between drawing and this.
    if (found.changes !== shown) show(0);
    return leave;
  }, [found]);
  return found;
}

const clocks = new Set<() => void>();
setInterval(() => clocks.forEach((clock) => clock()), 1000);

/** The time, told every second. */
export function useNow(): number {
  const [, show] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const clock = () => show(0);
    clocks.add(clock);
    return () => void clocks.delete(clock);
  }, []);
  return Date.now();
}
