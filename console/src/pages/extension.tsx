// A page that an extension brings: a frame of its own, in which its code runs without an origin. What goes wrong in it is
// said here, and stays here.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { openFrame, Refusal } from "../api";
import { serve } from "../extensions/broker";
import { routeOf, type Page } from "../extensions/manifest";
import { addressOf, reread, useKnownExtensions, type Extension as Known } from "../extensions/registry";
import { go, Link } from "../router";
import { useNamespace } from "../scope";
import { Button, Card, Title } from "../ui/parts";

/** How long code may take to show itself. */
const PATIENCE = 15_000;
/** How long it is told that something was done. */
const NEWS = 8000;

const dark = matchMedia("(prefers-color-scheme: dark)");

function useTheme(): "light" | "dark" {
  const [theme, setTheme] = useState(dark.matches ? "dark" : "light");
  useEffect(() => {
    const changed = () => setTheme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  return theme as "light" | "dark";
}

interface Told {
  kind: "info" | "error";
  text: string;
}

function Frame(props: { extension: Known; page: Page; route: string; rest: string; title: string }) {
  const { extension, page, route, rest } = props;
  const [opened, setOpened] = useState<{ path: string; isolated: boolean } | null>(null);
  const [problem, setProblem] = useState("");
  const [told, setTold] = useState<Told | null>(null);
  const [shown, setShown] = useState(false);
  const frame = useRef<HTMLIFrameElement>(null);
  const port = useRef<MessagePort | null>(null);
  const theme = useTheme();
  const namespace = useRef("");
  namespace.current = useNamespace();
  const here = { id: page.id, path: rest, locale: navigator.language, theme };
  const latest = useRef(here);
  latest.current = here;

  useEffect(() => {
    let gone = false;
    openFrame(extension.namespace, extension.bundle, page.id, extension.version).then(
      (answer) => { if (!gone) setOpened(answer); },
      (error) => {
        if (gone) return;
        // Somebody has built it anew: the registry hears of it, too.
        if (error instanceof Refusal && error.code === 409) reread(extension);
        setProblem(error instanceof Error ? error.message : String(error));
      },
    );
    return () => { gone = true; };
  }, []);

  // With the frame, not after it was painted: what it says once may be said by then.
  useLayoutEffect(() => {
    if (!opened?.isolated || problem) return;
    let stop: (() => void) | null = null;
    const timer = setTimeout(() => setProblem("It does not show itself."), PATIENCE);
    const listen = (event: MessageEvent) => {
      const inside = frame.current?.contentWindow;
      // Once only: whatever the frame leads itself to gets nothing.
      if (!inside || event.source !== inside || event.data !== "agentcube-frame" || stop) return;
      const channel = new MessageChannel();
      port.current = channel.port1;
      stop = serve(channel.port1, {
        resource: page.resource,
        namespace: () => namespace.current,
        navigate: (parts) => go(addressOf(extension, [route, ...parts.map(encodeURIComponent)].join("/"))),
        notify: (text, kind) => setTold({ text, kind }),
        shown: () => { clearTimeout(timer); setShown(true); },
        failed: (why) => { clearTimeout(timer); setProblem(why); },
        complained: (what) => setTold({ kind: "error", text: `Something in it failed: ${what}` }),
      });
      inside.postMessage({ page: latest.current }, "*", [channel.port2]);
    };
    addEventListener("message", listen);
    return () => {
      clearTimeout(timer);
      removeEventListener("message", listen);
      port.current = null;
      stop?.();
    };
  }, [opened, problem !== ""]);

  // What went wrong on another page is no news on this one; that something was done is, for a while.
  useEffect(() => {
    if (told?.kind !== "info") return;
    const timer = setTimeout(() => setTold(null), NEWS);
    return () => clearTimeout(timer);
  }, [told]);
  useEffect(() => {
    setTold((before) => (before?.kind === "error" ? null : before));
    port.current?.postMessage({ page: latest.current });
  }, [rest, theme]);

  if (problem) return <Broken extension={extension} why={problem} />;
  return (
    <>
      {told && (
        <div class={`notice ${told.kind === "error" ? "bad" : ""}`} role={told.kind === "error" ? "alert" : "status"}>
          <p>{told.text}</p>
        </div>
      )}
      {opened && (
        <iframe
          ref={frame} class={opened.isolated ? "extension" : "extension site"} title={props.title} src={opened.path} referrerpolicy="no-referrer" aria-busy={opened.isolated && !shown}
          sandbox={opened.isolated ? "allow-scripts" : "allow-scripts allow-same-origin allow-forms allow-popups allow-downloads"}
        />
      )}
    </>
  );
}

function Broken(props: { extension: Known; why: string }) {
  const { namespace, name } = props.extension;
  return (
    <Card title="This extension is broken">
      <div class="notice bad inside" role="alert"><p>{props.why}</p></div>
      <p class="foot dim">It was made for <Link to={`/ui/frontends/${namespace}/${name}`}>FrontendIntegration {namespace}/{name}</Link>, which can be built anew there. Everything else goes on.</p>
    </Card>
  );
}

const WAITING = {
  off: "This extension is switched off.",
  building: "This extension is being built. It appears when that is done.",
};

export function Extension(props: { namespace: string; name: string; parts: string[] }) {
  const { all, waiting, known } = useKnownExtensions();
  const id = `${props.namespace}/${props.name}`;
  const current = all.find((one) => one.namespace === props.namespace && one.name === props.name);
  const state = waiting.get(id);
  // What is open stays as it is until the reader wants the new one; what is switched off goes at once.
  const [held, setHeld] = useState<Known | null>(null);
  useEffect(() => {
    if (state === "off" || (known && !current && !state)) setHeld(null);
    else if (current && (!held || held.problem)) setHeld(current);
  }, [current, state, known]);
  const extension = state === "off" ? null : held ?? current ?? null;
  const found = extension?.manifest ? routeOf(extension.manifest, props.parts) : null;
  const first = extension?.manifest?.menu[0]?.path ?? extension?.manifest?.routes.keys().next().value;
  useEffect(() => {
    if (extension?.manifest && props.parts.length === 0 && first) go(addressOf(extension, first), true);
  }, [extension, props.parts.length]);
  const title = extension?.manifest?.menu.find((item) => item.path === found?.route)?.title ?? extension?.title ?? props.name;
  const site = found?.page.entryComponent === "Iframe" ? found.page.src : null;
  const changed = held && current && held.version !== current.version;
  return (
    <>
      <Title name={title} actions={site && <a class="button" href={site} target="_blank" rel="noreferrer">Open in a tab</a>}>{title}</Title>
      {changed && (
        <div class="notice" role="status">
          <p>This page was built anew. <Button onClick={() => setHeld(current)}>Show the new one</Button></p>
        </div>
      )}
      {held && state === "building" && <div class="notice" role="status"><p>A new version of this page is being built.</p></div>}
      {!extension && <Card><div class="empty">{state ? WAITING[state] : known ? "There is no such extension." : "Reading…"}</div></Card>}
      {extension?.problem && <Broken extension={extension} why={extension.problem} />}
      {extension?.manifest && !found && props.parts.length > 0 && <Card><div class="empty">This extension has no such page.</div></Card>}
      {extension && found && <Frame key={`${extension.version}/${found.page.id}`} extension={extension} page={found.page} route={found.route} rest={found.rest} title={title} />}
    </>
  );
}
