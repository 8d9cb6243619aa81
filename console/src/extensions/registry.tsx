// Which extensions there are: integrations that are enabled and whose bundle is current, live by watch. Of bundles only
// the metadata is watched; what one says that it has is read once for each of its versions.

import { createContext } from "preact";
import { useContext, useEffect, useReducer } from "preact/hooks";
import { extensionManifest } from "../api";
import { BUNDLE, FRONTEND, pathOf, type Kind } from "../kinds";
import { useNamespace } from "../scope";
import { useCollection, type Collection } from "../store";
import { readManifest, standing, type Manifest } from "./manifest";

export interface Extension {
  namespace: string;
  name: string;
  title: string;
  bundle: string;
  version: string;
  manifest: Manifest | null;
  /** Why it cannot be shown. */
  problem: string | null;
}

export interface Extensions {
  all: Extension[];
  /** Integrations that have no page now, and why. */
  waiting: Map<string, "off" | "building">;
  known: boolean;
}

/** Everywhere, or where the reader may look. */
function useEverywhere(kind: Kind, metadata: boolean): Collection {
  const shown = useNamespace();
  const whole = useCollection(pathOf(kind), metadata);
  const narrow = whole.problem?.code === 403 && shown !== "";
  return useCollection(narrow ? pathOf(kind, shown) : pathOf(kind), metadata);
}

type Read = { manifest: Manifest | null; problem: string | null };
const read = new Map<string, Read>();
const reading = new Map<string, Promise<void>>();

/** Forgets what was read of a bundle, so that it is read again. */
export function reread(extension: Extension): void {
  read.delete(keyOf(extension));
}

/** Forgets everything: the session is over. */
export function forgetExtensions(): void {
  read.clear();
}

const keyOf = (one: { namespace: string; bundle: string; version: string }) => `${one.namespace}/${one.bundle}@${one.version}`;

async function load(one: { namespace: string; bundle: string }, key: string): Promise<void> {
  try {
    const { manifest } = await extensionManifest(one.namespace, one.bundle);
    read.set(key, { manifest: readManifest(manifest, navigator.languages), problem: null });
  } catch (error) {
    read.set(key, { manifest: null, problem: error instanceof Error ? error.message : String(error) });
  } finally {
    reading.delete(key);
  }
}

/** Ends when it is read, whoever began with that. */
function loaded(one: { namespace: string; bundle: string; version: string }): Promise<void> {
  const key = keyOf(one);
  if (read.has(key)) return Promise.resolve();
  let begun = reading.get(key);
  if (!begun) reading.set(key, (begun = load(one, key)));
  return begun;
}

export function useExtensions(): Extensions {
  const [integrations, bundles] = [useEverywhere(FRONTEND, false), useEverywhere(BUNDLE, true)];
  const [, show] = useReducer((count: number) => count + 1, 0);
  const waiting: Extensions["waiting"] = new Map();
  const all: Extension[] = [];
  const missing: Extension[] = [];
  for (const integration of integrations.all()) {
    const { namespace = "", name } = integration.metadata;
    const found = standing(integration, bundles.items.values());
    if (found.state !== "current") {
      waiting.set(`${namespace}/${name}`, found.state);
      continue;
    }
    const one = { namespace, name, title: integration.spec?.displayName || name, bundle: found.bundle, version: found.version };
    const content = read.get(keyOf(one));
    if (content) all.push({ ...one, ...content });
    else missing.push({ ...one, manifest: null, problem: null });
  }
  const wanted = missing.map(keyOf).join(" ");
  useEffect(() => {
    for (const one of missing) void loaded(one).then(() => show(0));
  }, [wanted]);
  return { all, waiting, known: integrations.known && bundles.known && missing.length === 0 };
}

const Context = createContext<Extensions>({ all: [], waiting: new Map(), known: false });
export const ExtensionsProvider = Context.Provider;
export const useKnownExtensions = (): Extensions => useContext(Context);

/** The address of a page of an extension. */
export const addressOf = (one: { namespace: string; name: string }, route = ""): string =>
  `/ui/ext/${one.namespace}/${one.name}${route ? `/${route}` : ""}`;
