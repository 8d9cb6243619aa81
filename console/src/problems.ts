// What is wrong, and why: read out of objects, worst first. Nothing here asks anybody.

import { conditions, GOOD_WHEN_FALSE, happening, phase, podState, type Resource } from "./objects";
import { pageOf } from "./kinds";

export interface Problem {
  id: string;
  what: string;
  where: string;
  why: string;
  page: string | null;
  since: string;
}

/** Conditions that only say what others say. */
const SUMMARIES = new Set(["Ready", "TasksReady", "Built"]);

/** Why an object is not as it should be, if it is not. */
export function wrong(object: Resource, kind: string): Problem | null {
  const { name, namespace = "", uid } = object.metadata;
  if (object.metadata.deletionTimestamp) return null;
  const base = { id: uid, where: `${kind} ${namespace}/${name}`, page: pageOf(name, namespace, kind) };
  if (kind === "Pod") {
    const state = podState(object);
    if (state.tone !== "bad") return null;
    return { ...base, what: state.text, why: state.why, since: object.metadata.creationTimestamp ?? "" };
  }
  const state = phase(object);
  // Of several conditions, the one that is not a summary of the others says why.
  const failing = conditions(object).filter((condition) => condition.status === "False" && !GOOD_WHEN_FALSE.has(condition.type));
  const summary = failing.find((condition) => condition.type === "Ready");
  const cause = failing.find((condition) => !SUMMARIES.has(condition.type) && condition.message) ?? summary;
  // What is under way is not ready either, and says by its phase that nothing is wrong.
  const underWay = cause !== undefined && SUMMARIES.has(cause.type) && typeof object.status?.phase === "string";
  if (state.tone !== "bad" && (!cause || underWay)) return null;
  return {
    ...base,
    what: state.tone === "bad" ? state.text : cause?.reason || state.text,
    why: cause?.message ?? "",
    since: cause?.lastTransitionTime ?? object.metadata.creationTimestamp ?? "",
  };
}

const RECENT = 15 * 60 * 1000;

/** Warnings of the last quarter of an hour about things that are still there, the latest first. */
export function warnings(events: Resource[], now: number) {
  return events.map(happening)
    .filter((event) => event.type === "Warning" && now - Date.parse(event.at) < RECENT)
    .sort((a, b) => Date.parse(b.at) - Date.parse(a.at));
}
