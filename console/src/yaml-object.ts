// Objects as YAML and back, and where in the text a mistake is.

import type { Resource } from "./objects";
import type * as Yaml from "./yaml";
import type { Refusal } from "./api";

let loading: Promise<typeof Yaml> | null = null;

/** The YAML library, asked for once. */
export function library(): Promise<typeof Yaml> {
  // Built as a file of its own, under this name.
  const address = "/assets/yaml.js";
  loading ??= import(/* @vite-ignore */ address) as Promise<typeof Yaml>;
  return loading;
}

export interface Mistake {
  line: number | null;
  field: string;
  message: string;
}

export function write(yaml: typeof Yaml, object: Resource): string {
  const { managedFields: _unread, ...metadata } = object.metadata as Resource["metadata"] & { managedFields?: unknown };
  return yaml.stringify({ ...object, metadata }, { lineWidth: 0 });
}

export function read(yaml: typeof Yaml, text: string): { object: Resource | null; mistakes: Mistake[] } {
  const lines = new yaml.LineCounter();
  const document = yaml.parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: true });
  const mistakes = document.errors.map((error) => ({ line: lines.linePos(error.pos[0]).line, field: "", message: error.message }));
  if (mistakes.length > 0) return { object: null, mistakes };
  let object: unknown;
  try {
    object = document.toJS({ maxAliasCount: 100 });
  } catch (error) {
    return { object: null, mistakes: [{ line: null, field: "", message: String(error) }] };
  }
  const whole = object as Resource | null;
  if (typeof whole !== "object" || !whole || typeof whole.metadata !== "object" || !whole.metadata) {
    return { object: null, mistakes: [{ line: 1, field: "", message: "this is no object: it has no metadata" }] };
  }
  return { object: whole, mistakes: [] };
}

/** What turns one value into another, as a JSON merge patch (RFC 7386); nothing when they are equal. */
export function mergePatch(before: unknown, after: unknown): unknown {
  const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject(before) || !isObject(after)) return JSON.stringify(before) === JSON.stringify(after) ? undefined : after;
  const patch: Record<string, unknown> = {};
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const change = key in after ? mergePatch(before[key], after[key]) : null;
    if (change !== undefined) patch[key] = change;
  }
  return Object.keys(patch).length > 0 ? patch : undefined;
}

/** What somebody has changed of an object. Its status is the controllers', and its version moves with that. */
export function edits(before: Resource, after: Resource): unknown {
  const own = ({ status: _status, metadata, ...rest }: Resource) => {
    const { resourceVersion: _version, generation: _generation, managedFields: _fields, ...kept } = metadata as Resource["metadata"] & { managedFields?: unknown };
    return { ...rest, metadata: kept };
  };
  return mergePatch(own(before), own(after));
}

/** The parts of a field's path: `spec.a[0].b` is spec, a, 0, b. */
export function parts(field: string): (string | number)[] {
  const found = field.matchAll(/\[(\d+)\]|\[([^\]]*)\]|([^.[\]]+)/g);
  return [...found].map(([, index, key, word]) => (index !== undefined ? Number(index) : (key ?? word ?? "").replace(/^"|"$/g, "")));
}

/** The line of a field, or of what would hold it. */
function lineOf(yaml: typeof Yaml, text: string, field: string): number | null {
  const lines = new yaml.LineCounter();
  const document = yaml.parseDocument(text, { lineCounter: lines });
  let node: unknown = document.contents;
  let line: number | null = null;
  for (const part of parts(field)) {
    if (yaml.isMap(node)) {
      const pair = node.items.find((item) => yaml.isScalar(item.key) && String(item.key.value) === String(part));
      if (!pair || !yaml.isScalar(pair.key)) break;
      if (pair.key.range) line = lines.linePos(pair.key.range[0]).line;
      node = pair.value;
    } else if (yaml.isSeq(node) && typeof part === "number") {
      node = node.items[part];
      const range = (node as { range?: [number, number, number] } | undefined)?.range;
      if (range) line = lines.linePos(range[0]).line;
    } else break;
  }
  return line;
}

/** What the API server found wrong, and where that is in the text. */
export function mistakes(yaml: typeof Yaml, text: string, refusal: Refusal): Mistake[] {
  const named = refusal.causes.filter((cause) => cause.field && cause.field !== "<nil>");
  if (named.length > 0) {
    return named.map(({ field = "", message = "" }) => ({ field, line: lineOf(yaml, text, field), message }));
  }
  const unknown = [...refusal.message.matchAll(/(unknown|duplicate) field "([^"]+)"/g)];
  if (unknown.length > 0) {
    return unknown.map(([message, , field = ""]) => ({ field, line: lineOf(yaml, text, field), message }));
  }
  return [{ field: "", line: null, message: refusal.message }];
}
