// Addresses of pages, and links that change them without loading anything.

import type { ComponentChildren } from "preact";
import { useEffect, useReducer } from "preact/hooks";

const listeners = new Set<() => void>();
const moved = () => listeners.forEach((listener) => listener());
addEventListener("popstate", moved);

export function go(path: string, replace = false): void {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  moved();
}

export interface Place {
  /** The parts of the path after `/ui/`. */
  parts: string[];
  query: URLSearchParams;
}

export function usePlace(): Place {
  const [, show] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const listener = () => show(0);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  const parts = location.pathname.replace(/^\/(ui\/?)?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  return { parts, query: new URLSearchParams(location.search) };
}

export function Link(props: { to: string; class?: string; current?: boolean; children: ComponentChildren }) {
  const follow = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    go(props.to);
  };
  return (
    <a href={props.to} class={props.class} aria-current={props.current ? "page" : undefined} onClick={follow}>
      {props.children}
    </a>
  );
}
