// Runs in the frame of an extension, before the extension does: it has no origin, and nothing of the session. All that code
// of the extension can reach is `host`, whose calls the page answers, or refuses, at the other end of a port.

export const API_VERSION = 1;

interface Page {
  id: string;
  path: string;
  locale: string;
  theme: "light" | "dark";
}

type Answer = { resolve: (value: unknown) => void; reject: (error: Error) => void };
type Unmount = (() => void) | undefined;

function say(what: unknown): string {
  return what instanceof Error ? what.message || what.name : String(what);
}

function begin(port: MessagePort, first: Page): void {
  const answers = new Map<number, Answer>();
  const watches = new Map<number, (event: unknown) => void>();
  let numbers = 0;
  let page = first;
  let show: (() => void) | null = null;

  const call = (method: string, ...args: unknown[]): Promise<unknown> =>
    new Promise((resolve, reject) => {
      const id = ++numbers;
      answers.set(id, { resolve, reject });
      port.postMessage({ call: id, method, args });
    });
  const host = Object.freeze({
    list: (options: unknown = {}) => call("list", options),
    get: (name: string, namespace?: string) => call("get", name, namespace),
    create: (object: unknown) => call("create", object),
    update: (object: unknown) => call("update", object),
    remove: (name: string, namespace?: string) => call("remove", name, namespace),
    schema: () => call("schema"),
    namespaces: () => call("namespaces"),
    navigate: (subpath: string) => call("navigate", subpath),
    notify: (text: string, kind = "info") => call("notify", text, kind),
    watch: (options: unknown, onEvent: (event: unknown) => void) => {
      const id = ++numbers;
      watches.set(id, onEvent);
      port.postMessage({ watch: id, options });
      return () => {
        if (watches.delete(id)) port.postMessage({ stop: id });
      };
    },
  });

  const fail = (text: string) => port.postMessage({ failed: text });
  addEventListener("error", (event) => port.postMessage({ complaint: say(event.error ?? event.message) }));
  addEventListener("unhandledrejection", (event) => port.postMessage({ complaint: say(event.reason) }));

  port.onmessage = ({ data }) => {
    if (data.answer !== undefined) {
      const answer = answers.get(data.answer);
      answers.delete(data.answer);
      if (!data.refused) answer?.resolve(data.value);
      else answer?.reject(Object.assign(new Error(data.refused.message), { code: data.refused.code, causes: data.refused.causes }));
    } else if (data.event !== undefined) {
      watches.get(data.event)?.(data.value);
    } else if (data.page) {
      page = data.page;
      show?.();
    }
  };

  const dress = () => {
    document.documentElement.lang = page.locale;
    document.documentElement.style.colorScheme = page.theme;
  };
  dress();
  const load = async () => {
    const address = "./index.js";
    let extension: { apiVersion?: unknown; default?: unknown };
    try {
      extension = await import(/* @vite-ignore */ address);
    } catch (error) {
      return fail(`Its code does not load: ${say(error)}`);
    }
    const { apiVersion, default: mount } = extension;
    if (typeof apiVersion === "number" && apiVersion > API_VERSION) {
      return fail(`It was built for a later console: its API has version ${apiVersion}, this console's has version ${API_VERSION}.`);
    }
    if (apiVersion !== API_VERSION) return fail("It does not say for which console it was built (apiVersion).");
    if (typeof mount !== "function") return fail("It exports no function that shows it.");
    let unmount: Unmount;
    show = () => {
      dress();
      try {
        unmount?.();
        const root = document.createElement("div");
        document.body.replaceChildren(root);
        const returned: unknown = mount(root, host, Object.freeze({ ...page }));
        unmount = typeof returned === "function" ? (returned as () => void) : undefined;
        port.postMessage({ shown: true });
      } catch (error) {
        fail(`It fails when it is shown: ${say(error)}`);
      }
    };
    show();
  };
  void load();
}

const listen = (event: MessageEvent) => {
  const port = event.ports[0];
  if (event.source !== parent || !port) return;
  removeEventListener("message", listen);
  begin(port, event.data.page);
};
addEventListener("message", listen);
parent.postMessage("agentcube-frame", "*");
