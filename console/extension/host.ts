// What the console gives to pages, as docs/extensions.md has it.

import type { Schema } from "./form";
import type { Thing } from "./values";

export type Event =
  | { type: "RESET"; items: Thing[] }
  | { type: "ADDED" | "MODIFIED" | "DELETED"; object: Thing }
  | { type: "ERROR"; code: number; message: string };

export interface Page {
  id: string;
  path: string;
  locale: string;
  theme: "light" | "dark";
}

export interface Host {
  list(options?: { namespace?: string }): Promise<{ items: Thing[]; resourceVersion: string }>;
  watch(options: { namespace?: string }, onEvent: (event: Event) => void): () => void;
  get(name: string, namespace?: string): Promise<Thing>;
  create(object: unknown): Promise<Thing>;
  update(object: unknown): Promise<Thing>;
  remove(name: string, namespace?: string): Promise<void>;
  schema(): Promise<Schema | null>;
  namespaces(): Promise<string[]>;
  navigate(subpath: string): Promise<void>;
  notify(text: string, kind?: "info" | "error"): Promise<void>;
}

/** What the console answered instead of doing it. */
export interface Refused extends Error {
  code?: number;
  causes?: { field?: string; message?: string }[];
}
