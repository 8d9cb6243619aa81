// Objects as the API server sends them, and what pages read out of them. Nothing here asks anybody.

export interface Meta {
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { kind: string; name: string; uid: string; controller?: boolean }[];
}

export interface Condition {
  type: string;
  status: "True" | "False" | "Unknown";
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

/** Any object; what is below `spec` and `status` depends on its kind, and may be missing or wrong. */
export interface Resource {
  apiVersion?: string;
  kind?: string;
  metadata: Meta;
  spec?: any;
  status?: any;
  [field: string]: any;
}

export type Tone = "good" | "busy" | "bad" | "quiet";

export const LABEL = {
  lease: "agentcube.io/lease",
  task: "agentcube.io/task",
  taskUid: "agentcube.io/task-uid",
  reserveKey: "agentcube.io/reserve-key",
  releasing: "agentcube.io/releasing",
  rests: "agentcube.io/rests",
  pool: "sandbox.fast.io/pool",
  app: "middleware.io/app",
  role: "middleware.io/role",
} as const;

export function conditions(object: Resource): Condition[] {
  const found = object.status?.conditions;
  return Array.isArray(found) ? found : [];
}

/** Conditions that are good when they are false. */
export const GOOD_WHEN_FALSE = new Set(["PendingChange", "Paused"]);

/** The state of an object in a word, and what to think of it. */
export function phase(object: Resource): { text: string; tone: Tone } {
  if (object.metadata.deletionTimestamp) return { text: "Terminating", tone: "busy" };
  const text: unknown = object.status?.phase;
  if (typeof text === "string" && text) return { text, tone: toneOf(text) };
  const ready = conditions(object).find((condition) => condition.type === "Ready");
  if (ready?.status === "True") return { text: "Ready", tone: "good" };
  if (ready) return { text: ready.reason || "Not ready", tone: ready.status === "False" ? "bad" : "busy" };
  return { text: "Pending", tone: "busy" };
}

export function toneOf(word: string): Tone {
  if (/^(Serving|Running|Ready|Succeeded|Bound|Active|Done|done|bound|Normal|True)$/.test(word)) return "good";
  if (/^(Failed|failed|Lost|Error|Degraded|Warning|False|CrashLoopBackOff|ImagePullBackOff|ErrImagePull|OOMKilled)$/.test(word)) return "bad";
  if (/^(Disabled|Expired|Completed|paused|skipped|cancelled|Skipped|Cancelled)$/.test(word)) return "quiet";
  return "busy";
}

/** A Pod's state as `kubectl get pods` has it. */
export function podState(pod: Resource): { text: string; tone: Tone; why: string } {
  if (pod.metadata.deletionTimestamp) return { text: "Terminating", tone: "busy", why: "" };
  const all = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])];
  for (const status of all) {
    const waiting = status.state?.waiting;
    if (waiting?.reason && !/^(PodInitializing|ContainerCreating)$/.test(waiting.reason)) {
      return { text: waiting.reason, tone: toneOf(waiting.reason) === "bad" ? "bad" : "busy", why: waiting.message ?? "" };
    }
    const ended = status.state?.terminated;
    if (ended && ended.exitCode !== 0) {
      return { text: ended.reason || "Error", tone: "bad", why: ended.message || `${status.name} ended with ${ended.exitCode}` };
    }
  }
  const text: string = pod.status?.phase ?? "Pending";
  const unscheduled = conditions(pod).find((condition) => condition.type === "PodScheduled" && condition.status === "False");
  if (text === "Pending" && unscheduled) return { text: "Unschedulable", tone: "bad", why: unscheduled.message ?? "" };
  if (text === "Running") {
    const ready = conditions(pod).find((condition) => condition.type === "Ready");
    if (ready?.status !== "True") return { text: "Starting", tone: "busy", why: ready?.message ?? "" };
  }
  return { text, tone: text === "Succeeded" ? "quiet" : toneOf(text), why: pod.status?.message ?? "" };
}

/** How a Pod came up: each step, and how many seconds after the Pod was made. */
export function startOf(pod: Resource): { step: string; seconds: number }[] {
  const made = Date.parse(pod.metadata.creationTimestamp ?? "");
  const at = (step: string, time: unknown) =>
    typeof time === "string" && !Number.isNaN(Date.parse(time)) ? [{ step, seconds: Math.max(0, (Date.parse(time) - made) / 1000) }] : [];
  const reached = (type: string) => conditions(pod).find((condition) => condition.type === type && condition.status === "True")?.lastTransitionTime;
  const started = (pod.status?.containerStatuses ?? []).map((one: Resource) => one.state?.running?.startedAt).filter(Boolean).sort().at(-1);
  return [...at("Scheduled", reached("PodScheduled")), ...at("Initialized", reached("Initialized")), ...at("Started", started), ...at("Ready", reached("Ready"))];
}

export interface Session {
  key: string;
  task: string;
  taskUid: string;
  namespace: string;
  lease: string;
  instance: string;
  onPool: boolean;
  state: "bound" | "waiting" | "releasing" | "paused" | "ending";
  active: string;
  created: string;
}

/** Reads the Lease of a session, as `agentcube sessions` does; other Leases are none. */
export function session(lease: Resource): Session | null {
  const { metadata, spec } = lease;
  if (metadata.labels?.[LABEL.lease] !== "session") return null;
  const key = metadata.annotations?.[LABEL.reserveKey];
  if (key === undefined) return null;
  const holder: string = spec?.holderIdentity ?? "";
  const parts = holder.split("/");
  const onPool = parts.length === 3 && parts[0] === "sandbox";
  const instance = onPool ? parts[1] : parts[0];
  const state = metadata.deletionTimestamp ? "ending"
    : !holder ? "waiting"
    : metadata.annotations?.[LABEL.releasing] !== undefined ? "releasing"
    : metadata.annotations?.[LABEL.rests] !== undefined ? "paused"
    : "bound";
  return {
    key, state, onPool,
    task: metadata.ownerReferences?.find((owner) => owner.kind === "Task")?.name ?? "",
    taskUid: metadata.labels?.[LABEL.taskUid] ?? "",
    namespace: metadata.namespace ?? "",
    lease: metadata.name,
    instance: instance ?? "",
    active: spec?.renewTime ?? metadata.creationTimestamp ?? "",
    created: metadata.creationTimestamp ?? "",
  };
}

/** An Event of either API, in one form. */
export interface Happening {
  uid: string;
  namespace: string;
  type: string;
  reason: string;
  message: string;
  kind: string;
  name: string;
  about: string;
  at: string;
  count: number;
}

export function happening(event: Resource): Happening {
  const about = event.involvedObject ?? event.regarding ?? {};
  return {
    uid: event.metadata.uid,
    namespace: about.namespace ?? event.metadata.namespace ?? "",
    type: event.type ?? "Normal",
    reason: event.reason ?? "",
    message: event.message ?? event.note ?? "",
    kind: about.kind ?? "",
    name: about.name ?? "",
    about: about.uid ?? "",
    at: event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp ?? "",
    count: event.series?.count ?? event.count ?? 1,
  };
}

/** How long ago, as kubectl writes it. */
export function age(then: string | undefined, now: number): string {
  if (!then) return "";
  const seconds = Math.max(0, Math.floor((now - Date.parse(then)) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}h`;
  return `${Math.floor(hours / 24)}d`;
}
