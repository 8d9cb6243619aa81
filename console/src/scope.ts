// The namespace that pages show: all, or one. Remembered by the browser.

import { useEffect, useReducer } from "preact/hooks";
import { pathOf, type Kind, LEASE } from "./kinds";
import { useCollection, type Collection } from "./store";
import { LABEL } from "./objects";

const KEY = "agentcube-namespace";
const listeners = new Set<() => void>();
let chosen = localStorage.getItem(KEY) ?? "";

export function choose(namespace: string): void {
  chosen = namespace;
  localStorage.setItem(KEY, namespace);
  listeners.forEach((listener) => listener());
}

export function useNamespace(): string {
  const [, show] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const listener = () => show(0);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return chosen;
}

/** The objects of a kind in the namespace that is shown. */
export function useKind(kind: Kind, metadata = false): Collection {
  return useCollection(pathOf(kind, useNamespace() || undefined), metadata);
}

/** The objects of a kind in one namespace, whatever is shown. */
export function useKindIn(kind: Kind, namespace: string, metadata = false): Collection {
  return useCollection(pathOf(kind, namespace), metadata);
}

const OF_SESSIONS = `?labelSelector=${encodeURIComponent(`${LABEL.lease}=session`)}`;

/** Leases of sessions, in one namespace or in those that are shown. */
export function useLeases(namespace?: string): Collection {
  const shown = useNamespace();
  return useCollection(pathOf(LEASE, namespace ?? (shown || undefined)) + OF_SESSIONS);
}
