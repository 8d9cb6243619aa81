// One WebSocket for the whole tab, by which it follows watches and logs. It is opened again when it breaks; whoever
// follows is told, and decides how to go on.

import { proof, stillIn } from "./api";

export interface Follower {
  line(text: string): void;
  /** There are no more lines: 200 when it simply ended, 0 when the connection broke. */
  end(code: number, message: string): void;
}

export type Link = "connecting" | "live" | "broken";

const followers = new Map<number, { path: string; metadata: boolean; follower: Follower }>();
const watchers = new Set<(link: Link) => void>();
let socket: WebSocket | null = null;
let link: Link = "connecting";
let numbers = 0;
let failures = 0;
let timer: number | undefined;

function set(next: Link): void {
  if (next === link) return;
  link = next;
  for (const watcher of watchers) watcher(link);
}

export function onLink(watcher: (link: Link) => void): () => void {
  watchers.add(watcher);
  watcher(link);
  return () => watchers.delete(watcher);
}

function connect(): void {
  const words = proof();
  if (socket || !words) return;
  const opening = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  socket = opening;
  let opened = false;
  opening.onopen = () => {
    opened = true;
    failures = 0;
    opening.send(words);
    for (const [id, { path, metadata }] of followers) opening.send(JSON.stringify({ open: id, path, metadata }));
    set("live");
  };
  opening.onmessage = (event) => {
    const message = String(event.data);
    const blank = message.indexOf(" ");
    const head = message.slice(0, blank);
    const over = head.endsWith("!");
    const id = Number.parseInt(head, 10);
    const found = followers.get(id);
    if (!found) return;
    if (!over) return found.follower.line(message.slice(blank + 1));
    followers.delete(id);
    const status = JSON.parse(message.slice(blank + 1));
    found.follower.end(status.code, status.message);
  };
  opening.onclose = () => {
    if (socket !== opening) return;
    socket = null;
    set(failures === 0 ? "connecting" : "broken");
    const broken = [...followers.values()];
    followers.clear();
    for (const { follower } of broken) follower.end(0, "the connection broke");
    failures += 1;
    // A handshake that is refused does not say why.
    if (!opened) void stillIn();
    clearTimeout(timer);
    timer = setTimeout(connect, Math.min(10_000, 250 * 2 ** Math.min(failures, 6)));
  };
}

/** Follows a path until the returned function is called, or it ends; of objects all, or their metadata alone. */
export function follow(path: string, follower: Follower, metadata = false): () => void {
  const id = ++numbers;
  followers.set(id, { path, metadata, follower });
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ open: id, path, metadata }));
  else connect();
  return () => {
    if (!followers.delete(id)) return;
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ close: id }));
  };
}

/** Follows nothing any more: the session is over. */
export function disconnect(): void {
  clearTimeout(timer);
  followers.clear();
  const closing = socket;
  socket = null;
  failures = 0;
  closing?.close();
  set("connecting");
}
