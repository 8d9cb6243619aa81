// What a bundle says that it has, read with care: anybody who may write a JSBundle has written it. Nothing here asks anybody.

import type { Meta, Resource } from "../objects";

export interface ResourceName {
  group: string;
  version: string;
  plural: string;
  kind: string;
  scope: "Namespaced" | "Cluster";
}

export interface Page {
  id: string;
  entryComponent: string;
  /** The only resource that the page can reach. */
  resource: ResourceName | null;
  /** Where the site of an Iframe page is. */
  src: string | null;
}

export interface Item {
  path: string;
  title: string;
  order: number;
}

export interface Manifest {
  title: string;
  pages: Map<string, Page>;
  /** Pages by their route. */
  routes: Map<string, string>;
  menu: Item[];
}

const ROUTE = /^[A-Za-z0-9_.~-]+(\/[A-Za-z0-9_.~:-]+)*$/;
const WORD = /^[A-Za-z0-9][A-Za-z0-9.-]*$/;

type Json = Record<string, unknown>;
const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);
const list = (value: unknown): Json[] => (Array.isArray(value) ? value.filter(isObject) : []);
const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** The messages for a reader, the best language first. */
function messages(locales: Json[], languages: readonly string[]): Json[] {
  const wanted = [...languages.flatMap((one) => [one, one.split("-")[0] ?? ""]), "en"].map((one) => one.toLowerCase());
  const rank = (locale: Json) => {
    const at = wanted.indexOf(text(locale.lang).toLowerCase());
    return at < 0 ? wanted.length : at;
  };
  return [...locales].sort((a, b) => rank(a) - rank(b)).map((one) => (isObject(one.messages) ? one.messages : {}));
}

function resourceOf(value: unknown): ResourceName | null {
  if (!isObject(value)) return null;
  const { group, version, plural, kind, scope } = value;
  if (typeof group !== "string" || (group !== "" && !WORD.test(group)) || !WORD.test(text(version)) || !WORD.test(text(plural))) {
    throw new Error("a page names a resource that cannot be one");
  }
  return { group, version: text(version), plural: text(plural), kind: text(kind), scope: scope === "Cluster" ? "Cluster" : "Namespaced" };
}

/** Reads a manifest; throws what is wrong with it. */
export function readManifest(value: unknown, languages: readonly string[]): Manifest {
  if (!isObject(value)) throw new Error("the manifest is no object");
  const pages = new Map<string, Page>();
  for (const page of list(value.pages)) {
    const props = isObject(page.props) ? page.props : {};
    const id = text(page.id);
    if (!id) throw new Error("a page of the manifest has no id");
    pages.set(id, { id, entryComponent: text(page.entryComponent), resource: resourceOf(props.resource), src: text(props.src) || null });
  }
  if (pages.size === 0) throw new Error("the manifest has no pages");
  const routes = new Map<string, string>();
  for (const route of list(value.routes)) {
    const [path, pageId] = [text(route.path).replace(/^\//, ""), text(route.pageId)];
    if (!ROUTE.test(path) || path.split("/").some((part) => /^\.+$/.test(part))) throw new Error(`the manifest has a route that is none: ${path.slice(0, 80)}`);
    if (!pages.has(pageId)) throw new Error(`the route ${path} leads to a page that is not there: ${pageId.slice(0, 80)}`);
    routes.set(path, pageId);
  }
  if (routes.size === 0) throw new Error("the manifest has no routes");
  const spoken = messages(list(value.locales), languages);
  const said = (key: string) => text(spoken.find((one) => typeof one[key] === "string")?.[key]) || key;
  const menu = new Map<string, Item>();
  for (const item of list(value.menus)) {
    const path = text(item.name).replace(/^\//, "");
    // Several menus of other platforms are one here.
    if (!routes.has(path) || menu.has(path)) continue;
    menu.set(path, { path, title: said(text(item.title)) || path, order: typeof item.order === "number" ? item.order : 0 });
  }
  return { title: text(value.displayName) || text(value.name), pages, routes, menu: [...menu.values()].sort((a, b) => a.order - b.order) };
}

/** The route that an address begins with, the longest first, and what is left of it. */
export function routeOf(manifest: Manifest, parts: string[]): { route: string; page: Page; rest: string } | null {
  for (let length = parts.length; length > 0; length -= 1) {
    const route = parts.slice(0, length).join("/");
    const page = manifest.pages.get(manifest.routes.get(route) ?? "");
    if (page) return { route, page, rest: parts.slice(length).join("/") };
  }
  return null;
}

export const SPEC_HASH = "frontend-forge.io/spec-hash";
export const FI_NAME = "frontend-forge.io/fi-name";

/** Where an integration stands, as the console sees it. */
export type Standing =
  | { state: "off" }
  | { state: "building" }
  | { state: "current"; bundle: string; version: string };

/** Names one content of a bundle; changes of its status do not count. */
export const versionOf = (metadata: Meta): string => `${metadata.uid}/${metadata.generation ?? 0}`;

/** Whether an integration is enabled, and which of these bundles was built from its present spec. */
export function standing(integration: Resource, bundles: Iterable<Resource>): Standing {
  const { metadata, spec, status } = integration;
  if (spec?.enabled === false || metadata.deletionTimestamp) return { state: "off" };
  // A label has room for 63 of the 64 characters.
  const hash = text(status?.observed_spec_hash).replace(/^sha256:/, "").slice(0, 63);
  const named = text(status?.bundle_ref?.name);
  for (const { metadata: bundle } of bundles) {
    if (bundle.namespace !== metadata.namespace || bundle.deletionTimestamp) continue;
    if (named ? bundle.name !== named : bundle.labels?.[FI_NAME] !== metadata.name) continue;
    if (hash && bundle.labels?.[SPEC_HASH] === hash) return { state: "current", bundle: bundle.name, version: versionOf(bundle) };
  }
  return { state: "building" };
}
