// Requests to the server of the console: the session, and objects read and written as whoever logged in.

const PROOF = "agentcube-proof";

/** What the API server, or the console's, answered instead of doing it. */
export class Refusal extends Error {
  constructor(
    readonly code: number,
    message: string,
    readonly causes: { field?: string; message?: string; reason?: string }[] = [],
  ) {
    super(message);
  }
}

export interface Who {
  user: string | null;
  version: string;
}

let ended: () => void = () => undefined;

/** Tells `listener` when the session has ended without being asked to. */
export function onEnd(listener: () => void): void {
  ended = listener;
}

/** The half of a session's secret that only pages of this origin can read. */
export function proof(): string | null {
  return localStorage.getItem(PROOF);
}

async function ask(method: string, path: string, headers: Record<string, string>, body?: string): Promise<Response> {
  const request: RequestInit = { method, headers: { ...headers, "x-agentcube-proof": proof() ?? "" }, redirect: "error" };
  if (body !== undefined) request.body = body;
  let answer: Response;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new Refusal(0, "the console's server gives no answer: is AgentCube still running?");
  }
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  let causes = [];
  try {
    const status = await answer.json();
    message = status.message || message;
    causes = status.details?.causes ?? [];
  } catch {
    // No Status: the line of the answer says all there is.
  }
  if (answer.status === 401 && path !== "/session") ended();
  throw new Refusal(answer.status, message, causes);
}

export async function logIn(token: string): Promise<Who> {
  const answer = await ask("POST", "/session", { "content-type": "application/json" }, JSON.stringify({ token }));
  const opened = await answer.json();
  localStorage.setItem(PROOF, opened.proof);
  return opened;
}

/** Who is logged in; nobody is `null`. */
export async function who(): Promise<Who | null> {
  if (!proof()) return null;
  try {
    return await (await ask("GET", "/session", {})).json();
  } catch (error) {
    if (error instanceof Refusal && error.code === 401) return null;
    throw error;
  }
}

/** Finds out whether the session still is one; a server that does not answer says nothing about it. */
export async function stillIn(): Promise<void> {
  try {
    if ((await who()) === null) ended();
  } catch {
    // It is asked again after the next attempt.
  }
}

export async function logOut(): Promise<void> {
  try {
    await ask("DELETE", "/session", {});
  } finally {
    localStorage.removeItem(PROOF);
  }
}

export async function get<T>(path: string, accept = "application/json"): Promise<T> {
  return (await ask("GET", `/kube${path}`, { accept })).json();
}

export async function text(path: string): Promise<string> {
  return (await ask("GET", `/kube${path}`, {})).text();
}

export async function send<T>(method: "POST" | "PUT" | "PATCH" | "DELETE", path: string, body?: unknown, type = "application/json"): Promise<T> {
  const headers = { accept: "application/json", "content-type": type };
  return (await ask(method, `/kube${path}`, headers, body === undefined ? undefined : JSON.stringify(body))).json();
}

export interface Said {
  status: number;
  reason: string | null;
  headers: [string, string][];
  body: string;
  whole: boolean;
  milliseconds: number;
}

export async function invoke(namespace: string, task: string, call: unknown): Promise<Said> {
  const answer = await ask("POST", `/invoke/${namespace}/${task}`, { "content-type": "application/json" }, JSON.stringify(call));
  return answer.json();
}

/** What a bundle says that it has, if all of it is what was built. */
export async function extensionManifest(namespace: string, bundle: string): Promise<{ manifest: unknown; version: string }> {
  return (await ask("GET", `/extension/${namespace}/${bundle}`, {})).json();
}

/** A path at which a page of a bundle is, for a short while. */
export async function openFrame(namespace: string, bundle: string, page: string, version: string): Promise<{ path: string; isolated: boolean }> {
  const answer = await ask("POST", `/extension/${namespace}/${bundle}/frame`, { "content-type": "application/json" }, JSON.stringify({ page, version }));
  return answer.json();
}
