// Numbers of requests, read out of metrics as Prometheus writes them. Nothing here asks anybody.

/** Ways to get an instance, the quickest first, and how people call them. */
export const PATHS = [
  ["reused", "Reused", "the session had its instance"],
  ["bound", "Idle", "an idle instance was bound"],
  ["rebound", "Rebound", "the session had lost its own"],
  ["waited", "Cold", "one had to start or to become free"],
  ["refused", "Refused", "there was none"],
] as const;

export type Path = (typeof PATHS)[number][0];

interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

/** Lines of metrics. */
export function samples(text: string): Sample[] {
  return text.split("\n").flatMap((line) => {
    const found = /^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) return [];
    const labels: Record<string, string> = {};
    for (const [, key = "", value = ""] of (found[2] ?? "").matchAll(/([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, sign: string) => (sign === "n" ? "\n" : sign));
    }
    return [{ name: found[1]!, labels, value: found[3] === "+Inf" ? Infinity : Number(found[3]) }];
  });
}

/** Counts up to each bound, in seconds; the last bound is infinite. */
export interface Histogram {
  bounds: number[];
  counts: number[];
  count: number;
  sum: number;
}

export interface Figures {
  at: number;
  paths: Map<Path, Histogram>;
  sessions: number;
  inFlight: number;
  waiting: number;
}

/** What metrics say of one Task. */
export function figures(text: string, namespace: string, task: string, at: number): Figures {
  const of = samples(text).filter(({ labels }) => labels.namespace === namespace && labels.task === task);
  const gauge = (name: string) => of.filter((one) => one.name === name).reduce((sum, one) => sum + one.value, 0);
  const paths = new Map<Path, Histogram>();
  for (const [path] of PATHS) {
    const mine = of.filter(({ labels }) => labels.path === path);
    const buckets = mine.filter((one) => one.name === "agentcube_reserve_seconds_bucket")
      .map((one) => ({ bound: one.labels.le === "+Inf" ? Infinity : Number(one.labels.le), count: one.value })).sort((a, b) => a.bound - b.bound);
    const last = (name: string) => mine.find((one) => one.name === `agentcube_reserve_seconds_${name}`)?.value ?? 0;
    if (buckets.length > 0) paths.set(path, { bounds: buckets.map((one) => one.bound), counts: buckets.map((one) => one.count), count: last("count"), sum: last("sum") });
  }
  return { at, paths, sessions: gauge("agentcube_sessions"), inFlight: gauge("agentcube_requests_in_flight"), waiting: gauge("agentcube_reserve_waiting") };
}

/** What came to a histogram since an earlier one. */
export function since(now: Histogram, before: Histogram | undefined): Histogram {
  if (!before || before.count > now.count) return now;
  return { bounds: now.bounds, counts: now.counts.map((count, n) => count - (before.counts[n] ?? 0)), count: now.count - before.count, sum: now.sum - before.sum };
}

/** The time within which so many of 1 were, in seconds, by where it lies within its bucket; nothing if there were none. */
export function quantile(histogram: Histogram, part: number): number | null {
  const { bounds, counts } = histogram;
  const all = counts.at(-1) ?? 0;
  if (all === 0) return null;
  const wanted = part * all;
  const at = counts.findIndex((count) => count >= wanted);
  const [low, high] = [at > 0 ? bounds[at - 1]! : 0, bounds[at]!];
  if (!Number.isFinite(high)) return low;
  const [before, within] = [at > 0 ? counts[at - 1]! : 0, counts[at]! - (at > 0 ? counts[at - 1]! : 0)];
  return low + (high - low) * (within === 0 ? 1 : (wanted - before) / within);
}

/** Seconds, as people read them. */
export function seconds(value: number | null): string {
  if (value === null) return "–";
  if (value < 0.001) return `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 1) return `${(value * 1000).toPrecision(value < 0.01 ? 2 : 3).replace(/\.0+$/, "")} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}
