// A terminal in a Pod or a sandbox. It has a WebSocket of its own, with the same proof as the page's.

import { useEffect, useRef, useState } from "preact/hooks";
import { proof, stillIn } from "../api";
import type * as Library from "../terminal";
import { Button, Card } from "../ui/parts";

export interface Target {
  kind: "pod" | "sandbox";
  namespace: string;
  name: string;
  container?: string;
}

let loading: Promise<typeof Library> | null = null;

/** The library, and its style, asked for once. */
function library(): Promise<typeof Library> {
  if (!loading) {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/assets/terminal.css";
    const styled = new Promise<void>((resolve, reject) => {
      style.onload = () => resolve();
      style.onerror = () => reject(new Error("the terminal's style does not load"));
    });
    document.head.append(style);
    // Built as a file of its own, under this name.
    const address = "/assets/terminal.js";
    loading = Promise.all([import(/* @vite-ignore */ address) as Promise<typeof Library>, styled]).then(([loaded]) => loaded);
    loading.catch(() => { loading = null; });
  }
  return loading;
}

export function Terminal(props: { target: Target; containers?: string[] }) {
  const [container, setContainer] = useState(props.containers?.[0] ?? "");
  const [round, setRound] = useState(0);
  const [state, setState] = useState("Connecting…");
  const [ended, setEnded] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const { kind, namespace, name } = props.target;
  useEffect(() => {
    let [gone, socket, screen]: [boolean, WebSocket | null, Library.Screen | null] = [false, null, null];
    setEnded(false);
    setState("Connecting…");
    const end = (why: string) => {
      if (gone) return;
      setEnded(true);
      setState(why);
      screen?.say(why);
    };
    const start = (loaded: typeof Library) => {
      const parent = box.current;
      const words = proof();
      if (gone || !parent || !words) return;
      const send = (message: string | Uint8Array<ArrayBuffer>) => { if (socket?.readyState === WebSocket.OPEN) socket.send(message); };
      screen = loaded.open(parent, { typed: (bytes) => send(new Uint8Array(bytes)), resized: (size) => send(JSON.stringify(size)) });
      socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/terminal`);
      socket.binaryType = "arraybuffer";
      let opened = false;
      socket.onopen = () => {
        opened = true;
        send(words);
        send(JSON.stringify({ kind, namespace, name, ...(container ? { container } : {}), ...screen!.size() }));
      };
      socket.onmessage = ({ data }) => {
        if (gone) return;
        if (typeof data !== "string") return screen?.write(new Uint8Array(data));
        const told = JSON.parse(data);
        if (told.open) {
          setState("Connected");
          screen?.focus();
        } else if (typeof told.end === "string") end(told.end);
      };
      socket.onclose = () => {
        // Another is open by now, and what is said is said of that one.
        if (gone) return;
        if (!opened) void stillIn();
        setState((before) => {
          if (before === "Connecting…" || before === "Connected") setEnded(true);
          return before === "Connecting…" || before === "Connected" ? "the connection broke" : before;
        });
      };
    };
    library().then(start, (error) => end(String(error)));
    return () => {
      gone = true;
      socket?.close();
      screen?.close();
    };
  }, [kind, namespace, name, container, round]);
  return (
    <Card>
      <div class="filters">
        {(props.containers?.length ?? 0) > 1 && (
          <select aria-label="Container" value={container} onChange={(event) => setContainer(event.currentTarget.value)}>
            {props.containers?.map((one) => <option value={one}>{one}</option>)}
          </select>
        )}
        <span class="dim" role="status">{state}</span>
        {ended && <Button onClick={() => setRound(round + 1)}>Open again</Button>}
      </div>
      <div class="terminal" ref={box} role="group" aria-label={`Terminal in ${name}`} />
    </Card>
  );
}
