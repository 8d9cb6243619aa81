// The frame around all pages: login, menu, namespace, link to the server.

import { render, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { logOut, onEnd, Refusal, who, type Who } from "./api";
import { addressOf, ExtensionsProvider, forgetExtensions, useExtensions, useKnownExtensions } from "./extensions/registry";
import { BUNDLE, COMPONENT, GROUP, NAMESPACE } from "./kinds";
import { disconnect, onLink, type Link as Connection } from "./live";
import { App, Apps } from "./pages/apps";
import { Create } from "./pages/create";
import { Events } from "./pages/events";
import { Extension } from "./pages/extension";
import { Frontend, Frontends } from "./pages/frontends";
import { Login } from "./pages/login";
import { Gateway, Gateways, Plain, Pod, Pods, Pool, Sandbox, Sandboxes } from "./pages/others";
import { Overview } from "./pages/overview";
import { Sessions } from "./pages/sessions";
import { Task, Tasks } from "./pages/tasks";
import { go, Link, usePlace } from "./router";
import { choose, useNamespace } from "./scope";
import { forget, useCollection } from "./store";
import { Badge, Card, Title } from "./ui/parts";

const MENU: [string, string][] = [
  ["", "Overview"], ["tasks", "Tasks"], ["sessions", "Sessions"], ["gateways", "Gateways"], ["sandboxes", "Sandboxes"],
  ["apps", "Apps"], ["frontends", "Frontends"], ["pods", "Pods"], ["events", "Events"],
];
/** Under which entry of the menu a page is found. */
const UNDER: Record<string, string> = { pools: "sandboxes", components: "apps", groups: "apps", bundles: "frontends", new: "tasks" };

function Page(): ComponentChildren {
  const { parts } = usePlace();
  const [kind = "", namespace, name, tab = ""] = parts;
  const place = namespace && name ? { namespace, name, tab } : null;
  const key = `${kind}/${namespace}/${name}`;
  if (place) {
    switch (kind) {
      case "tasks": return <Task key={key} place={place} />;
      case "gateways": return <Gateway key={key} place={place} />;
      case "pools": return <Pool key={key} place={place} />;
      case "sandboxes": return <Sandbox key={key} place={place} />;
      case "apps": return <App key={key} place={place} />;
      case "pods": return <Pod key={key} place={place} />;
      case "components": return <Plain key={key} kind={COMPONENT} list={{ title: "Apps", to: "/ui/apps" }} place={place} />;
      case "groups": return <Plain key={key} kind={GROUP} list={{ title: "Apps", to: "/ui/apps" }} place={place} />;
      case "frontends": return <Frontend key={key} place={place} />;
      case "ext": return <Extension key={key} namespace={place.namespace} name={place.name} parts={parts.slice(3)} />;
      case "bundles": return <Plain key={key} kind={BUNDLE} list={{ title: "Frontends", to: "/ui/frontends" }} place={place} />;
    }
  }
  switch (namespace ? "?" : kind) {
    case "": return <Overview />;
    case "tasks": return <Tasks />;
    case "sessions": return <Sessions />;
    case "gateways": return <Gateways />;
    case "sandboxes": return <Sandboxes />;
    case "apps": return <Apps />;
    case "frontends": return <Frontends />;
    case "pods": return <Pods />;
    case "events": return <Events />;
    case "new": return <Create />;
  }
  return (
    <>
      <Title name="Not found">There is no such page</Title>
      <Card><div class="empty"><Link to="/ui/">Back to the overview</Link></div></Card>
    </>
  );
}

/** Entries that extensions bring, as they come and go. */
function ExtensionMenu(props: { at: string }) {
  const { all } = useKnownExtensions();
  const entries = all.flatMap((one) => one.manifest
    ? one.manifest.menu.map((item) => ({ key: `${one.namespace}/${one.name}/${item.path}`, to: addressOf(one, item.path), title: item.title, broken: false }))
    : [{ key: `${one.namespace}/${one.name}`, to: addressOf(one), title: one.title, broken: true }]);
  if (entries.length === 0) return null;
  return (
    <>
      <span class="heading" id="extensions">Extensions</span>
      <div class="group" role="group" aria-labelledby="extensions">
        {entries.map((entry) => (
          <Link key={entry.key} to={entry.to} current={props.at === entry.to || props.at.startsWith(`${entry.to}/`)}>
            {entry.title}{entry.broken && <span class="flaw"> (broken)</span>}
          </Link>
        ))}
      </div>
    </>
  );
}

function Namespaces() {
  const all = useCollection("/api/v1/namespaces");
  const shown = useNamespace();
  const names = all.all().map((one) => one.metadata.name);
  if (shown && !names.includes(shown)) names.push(shown);
  // Who may not list namespaces still knows the name of one.
  if (all.problem) {
    return <input aria-label={NAMESPACE.kind} placeholder="Namespace" value={shown} onChange={(event) => choose(event.currentTarget.value.trim())} />;
  }
  return (
    <select aria-label={NAMESPACE.kind} value={shown} onChange={(event) => choose(event.currentTarget.value)}>
      <option value="">All namespaces</option>
      {names.map((name) => <option value={name}>{name}</option>)}
    </select>
  );
}

function LinkState() {
  const [link, setLink] = useState<Connection>("connecting");
  useEffect(() => onLink(setLink), []);
  const text = { live: "Live", connecting: "Connecting", broken: "Disconnected" }[link];
  return <span role="status"><Badge tone={link === "live" ? "good" : link === "broken" ? "bad" : "busy"}>{text}</Badge></span>;
}

function Shell(props: { who: Who; onOut: () => void }) {
  const { parts } = usePlace();
  const main = useRef<HTMLElement>(null);
  const [open, setOpen] = useState(false);
  const page = parts.slice(0, 3).join("/");
  const first = useRef(true);
  // As after loading a page: who reads by ear hears the new one.
  useEffect(() => {
    setOpen(false);
    if (first.current) first.current = false;
    else main.current?.querySelector("h1")?.focus();
    scrollTo(0, 0);
  }, [page]);
  const current = UNDER[parts[0] ?? ""] ?? parts[0] ?? "";
  const extensions = useExtensions();
  return (
    <ExtensionsProvider value={extensions}>
    <div class="shell">
      <a class="skip" href="#main">Skip to content</a>
      <header class="top">
        <button type="button" class="menu" aria-expanded={open} aria-controls="menu" onClick={() => setOpen(!open)}>Menu</button>
        <Link to="/ui/" class="brand"><img src="/assets/icon.svg" alt="" width="22" height="22" /> AgentCube</Link>
        <span class="space" />
        <LinkState />
        <Namespaces />
        <span class="who dim">{props.who.user ?? "logged in"}</span>
        <button type="button" class="button" onClick={props.onOut}>Log out</button>
      </header>
      <nav id="menu" class={`side ${open ? "open" : ""}`} aria-label="Pages">
        {MENU.map(([id, title]) => <Link to={`/ui/${id}`} current={current === id}>{title}</Link>)}
        <ExtensionMenu at={`/ui/${parts.join("/")}`} />
        <span class="space" />
        <span class="dim version">AgentCube {props.who.version} · <a href="/assets/licenses.txt">Licences</a></span>
      </nav>
      <main id="main" ref={main}><Page /></main>
    </div>
    </ExtensionsProvider>
  );
}

function Console() {
  const [state, setState] = useState<Who | null | undefined>(undefined);
  const [why, setWhy] = useState("");
  const out = (reason: string) => {
    disconnect();
    forget();
    forgetExtensions();
    setWhy(reason);
    setState(null);
  };
  useEffect(() => {
    onEnd(() => out("The session has ended. Log in again."));
    who().then(setState, (error) => { setWhy(error instanceof Refusal ? error.message : String(error)); setState(null); });
  }, []);
  if (state === undefined) return null;
  if (!state) return <Login onIn={setState} why={why} />;
  return <Shell who={state} onOut={() => void logOut().finally(() => out(""))} />;
}

if (location.pathname === "/") go("/ui/", true);
const root = document.getElementById("app");
if (root) render(<Console />, root);
