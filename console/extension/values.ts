// Values in objects, by their paths, and as people read them. Nothing here asks anybody.

export interface Column {
  key: string;
  title: string;
  enableSorting?: boolean;
  render: { type?: "text" | "time" | "link"; path: string; format?: "local-datetime" | "utc"; pattern?: string; link?: string };
}

export interface Thing {
  apiVersion?: string;
  kind?: string;
  metadata: {
    name: string; namespace?: string; uid?: string; resourceVersion?: string; creationTimestamp?: string;
    labels?: Record<string, string>; annotations?: Record<string, string>; managedFields?: unknown; generation?: number;
  };
  spec?: unknown;
  status?: unknown;
  [field: string]: unknown;
}

/** The parts of a path: `spec.a[0]["b.c"]` is spec, a, 0, b.c. */
export function parts(path: string): string[] {
  return [...path.matchAll(/\[\s*"([^"]*)"\s*\]|\[\s*'([^']*)'\s*\]|\[\s*(\d+)\s*\]|([^.[\]]+)/g)].map(([, a, b, c, d]) => a ?? b ?? c ?? d ?? "");
}

export function at(value: unknown, path: string): unknown {
  let found: unknown = value;
  for (const part of parts(path)) {
    if (typeof found !== "object" || found === null || !Object.hasOwn(found, part)) return undefined;
    found = (found as Record<string, unknown>)[part];
  }
  return found;
}

/** A value in a cell. */
export function said(value: unknown): string {
  if (value === undefined || value === null) return "";
  if (Array.isArray(value)) return value.map(said).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function timeOf(value: unknown, format: "local-datetime" | "utc" | undefined, locale: string): string {
  const time = new Date(String(value));
  if (Number.isNaN(time.getTime())) return said(value);
  if (format === "utc") return time.toISOString().replace(/\.\d+Z$/, "Z").replace("T", " ");
  return time.toLocaleString(locale);
}

/** `{value}`, and paths of the object in braces, stand for what they name. */
export function filled(pattern: string, value: unknown, object: unknown, encode: (text: string) => string = (text) => text): string {
  return pattern.replace(/\{([^{}]+)\}/g, (_, name: string) => encode(said(name === "value" ? value : at(object, name))));
}

/** Where a link may lead: to a site, and nowhere that runs anything. */
export function safeLink(address: string): string | null {
  try {
    const url = new URL(address);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

/** What to sort by: numbers and times by what they mean, the rest as words. */
export function sortKey(column: Column, object: Thing): number | string {
  const value = at(object, column.render.path);
  if (column.render.type === "time") return Date.parse(String(value)) || 0;
  return typeof value === "number" ? value : said(value).toLowerCase();
}

/** A value put where a path leads; nothing takes away what is there, and what then holds nothing. */
export function put(whole: unknown, path: (string | number)[], value: unknown): unknown {
  const [first, ...rest] = path;
  if (first === undefined) return value;
  if (typeof first === "number") {
    const list = Array.isArray(whole) ? [...whole] : [];
    list[first] = put(list[first], rest, value);
    return list;
  }
  const map: Record<string, unknown> = typeof whole === "object" && whole !== null && !Array.isArray(whole) ? { ...(whole as Record<string, unknown>) } : {};
  const inner = put(map[first], rest, value);
  if (inner === undefined) delete map[first];
  else map[first] = inner;
  return map;
}
