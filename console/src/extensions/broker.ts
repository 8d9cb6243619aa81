// Answers what an extension asks for at the other end of a port: the one resource that its page declares, as whoever logged
// in, and nothing else. The extension is not trusted with anything that it says.

import { get, Refusal, send } from "../api";
import { pathOf } from "../kinds";
import type { Resource } from "../objects";
import { collection } from "../store";
import type { ResourceName } from "./manifest";

export interface Surroundings {
  resource: ResourceName | null;
  navigate(parts: string[]): void;
  notify(text: string, kind: "info" | "error"): void;
  /** The namespace that the console shows, if it is one. */
  namespace(): string;
  shown(): void;
  failed(why: string): void;
  complained(what: string): void;
}

/** Calls and watches of one frame at a time. */
const MOST_CALLS = 32;
const MOST_WATCHES = 8;
const LONGEST_TEXT = 500;
const LONGEST_PATH = 2000;
const NAME = /^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$/;

interface Answered {
  items: Resource[];
  metadata: { resourceVersion: string; continue?: string };
}

function refuse(message: string): never {
  throw new Refusal(403, message);
}

function name(value: unknown): string {
  if (typeof value !== "string" || !NAME.test(value)) refuse("this is no name");
  return value;
}

/** The way to the objects of a resource. */
function paths(resource: ResourceName | null) {
  if (!resource) refuse("this page has no resource");
  const namespaced = resource.scope === "Namespaced";
  return {
    all: (namespace: unknown) => pathOf({ id: "", ...resource }, namespaced && namespace ? name(namespace) : undefined),
    one: (called: unknown, namespace: unknown) => {
      if (namespaced && !namespace) refuse(`say in which namespace the ${resource.kind} is`);
      return pathOf({ id: "", ...resource }, namespaced ? name(namespace) : undefined, name(called));
    },
  };
}

const WRITES = "fieldManager=agentcube-console&fieldValidation=Strict";

function optionsOf(value: unknown): { namespace?: unknown } {
  return typeof value === "object" && value !== null ? value : {};
}

function objectOf(value: unknown): Resource {
  const object = value as Resource | null;
  if (typeof object !== "object" || !object || typeof object.metadata !== "object" || !object.metadata) refuse("this is no object");
  return object;
}

async function list(path: string): Promise<{ items: Resource[]; resourceVersion: string }> {
  const items: Resource[] = [];
  let next = "";
  for (;;) {
    const page = await get<Answered>(`${path}?limit=500${next ? `&continue=${encodeURIComponent(next)}` : ""}`);
    items.push(...page.items);
    next = page.metadata.continue ?? "";
    if (!next) return { items, resourceVersion: page.metadata.resourceVersion };
  }
}

/** The schema of the resource's definition; nothing if there is none, or the reader may not see it. */
async function schema(resource: ResourceName | null): Promise<unknown> {
  if (!resource?.group) return null;
  try {
    const definition = await get<Resource>(`/apis/apiextensions.k8s.io/v1/customresourcedefinitions/${resource.plural}.${resource.group}`);
    const version = (definition.spec?.versions ?? []).find((one: { name: string }) => one.name === resource.version);
    return version?.schema?.openAPIV3Schema ?? null;
  } catch (error) {
    if (error instanceof Refusal && (error.code === 404 || error.code === 403)) return null;
    throw error;
  }
}

async function namespaces(shown: string): Promise<string[]> {
  try {
    return (await list("/api/v1/namespaces")).items.map((one) => one.metadata.name);
  } catch (error) {
    if (error instanceof Refusal && error.code === 403) return shown ? [shown] : [];
    throw error;
  }
}

async function obey(method: unknown, args: unknown[], at: Surroundings): Promise<unknown> {
  const [first, second] = args;
  switch (method) {
    case "list": return list(paths(at.resource).all(optionsOf(first).namespace));
    case "get": return get<Resource>(paths(at.resource).one(first, second));
    case "create": {
      const object = objectOf(first);
      const path = at.resource?.scope === "Namespaced" && !object.metadata.namespace ? refuse("say in which namespace it is to be") : paths(at.resource).all(object.metadata.namespace);
      return send<Resource>("POST", `${path}?${WRITES}`, object);
    }
    case "update": {
      const object = objectOf(first);
      return send<Resource>("PUT", `${paths(at.resource).one(object.metadata.name, object.metadata.namespace)}?${WRITES}`, object);
    }
    case "remove": return send<unknown>("DELETE", paths(at.resource).one(first, second)).then(() => null);
    case "schema": return schema(at.resource);
    case "namespaces": return namespaces(at.namespace());
    case "navigate": {
      const parts = String(first ?? "").slice(0, LONGEST_PATH).split("/").filter(Boolean);
      // Up from its own route would be elsewhere in the console.
      if (parts.some((part) => /^\.+$/.test(part))) refuse("this leads out of the extension");
      return at.navigate(parts);
    }
    case "notify": return at.notify(String(first ?? "").slice(0, LONGEST_TEXT), second === "error" ? "error" : "info");
  }
  return refuse(`there is no ${String(method).slice(0, 40)}`);
}

/** Serves a frame until the returned function is called. */
export function serve(port: MessagePort, at: Surroundings): () => void {
  const watches = new Map<number, () => void>();
  let calls = 0;
  const call = async (id: number, method: unknown, args: unknown[]) => {
    calls += 1;
    try {
      if (calls > MOST_CALLS) refuse("too much at a time");
      port.postMessage({ answer: id, value: await obey(method, args, at) });
    } catch (error) {
      const { code, message, causes } = error instanceof Refusal ? error : new Refusal(0, String(error));
      port.postMessage({ answer: id, refused: { code, message, causes } });
    } finally {
      calls -= 1;
    }
  };
  const watch = (id: number, options: unknown) => {
    try {
      if (watches.size >= MOST_WATCHES) refuse("too many watches");
      const found = collection(paths(at.resource).all(optionsOf(options).namespace));
      watches.set(id, found.observe((event) => port.postMessage({ event: id, value: event })));
    } catch (error) {
      const { code, message } = error instanceof Refusal ? error : new Refusal(0, String(error));
      port.postMessage({ event: id, value: { type: "ERROR", code, message } });
    }
  };
  port.onmessage = ({ data }) => {
    if (typeof data !== "object" || data === null) return;
    if (typeof data.call === "number") void call(data.call, data.method, Array.isArray(data.args) ? data.args : []);
    else if (typeof data.watch === "number") watch(data.watch, data.options);
    else if (typeof data.stop === "number") {
      watches.get(data.stop)?.();
      watches.delete(data.stop);
    } else if (data.shown) at.shown();
    else if (typeof data.failed === "string") at.failed(data.failed.slice(0, LONGEST_TEXT));
    else if (typeof data.complaint === "string") at.complained(data.complaint.slice(0, LONGEST_TEXT));
  };
  return () => {
    for (const stop of watches.values()) stop();
    watches.clear();
    port.close();
  };
}
