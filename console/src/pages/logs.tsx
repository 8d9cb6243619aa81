import { useEffect, useRef, useState } from "preact/hooks";
import { POD, pathOf } from "../kinds";
import { follow } from "../live";
import type { Resource } from "../objects";
import { Card } from "../ui/parts";

/** Lines that are kept in the page. */
const MOST = 5000;
const FIRST = 1000;

/** Whether a container has ever run: before that there is no log to follow, and the answer would be final. */
function hasRun(pod: Resource, container: string): boolean {
  const all = [...(pod.status?.containerStatuses ?? []), ...(pod.status?.initContainerStatuses ?? [])];
  const { state, lastState } = all.find((one) => one.name === container) ?? {};
  return Boolean(state?.running || state?.terminated || lastState?.terminated);
}

/** What the containers of Pods write, as they write it. */
export function Logs(props: { pods: Resource[]; none?: string }) {
  const [chosen, setChosen] = useState("");
  const pod = props.pods.find((one) => one.metadata.name === chosen) ?? props.pods[0];
  const containers: string[] = [...(pod?.spec?.containers ?? []), ...(pod?.spec?.initContainers ?? [])].map((one) => one.name);
  const [container, setContainer] = useState("");
  const shown = containers.includes(container) ? container : containers[0];
  if (!pod || !shown) return <Card><div class="empty">{props.none ?? "No Pod runs, so there is nothing to read."}</div></Card>;
  return (
    <Card>
      <div class="filters">
        {props.pods.length > 1 && (
          <select aria-label="Pod" value={pod.metadata.name} onChange={(event) => setChosen(event.currentTarget.value)}>
            {props.pods.map((one) => <option value={one.metadata.name}>{one.metadata.name}</option>)}
          </select>
        )}
        {containers.length > 1 && (
          <select aria-label="Container" value={shown} onChange={(event) => setContainer(event.currentTarget.value)}>
            {containers.map((name) => <option value={name}>{name}</option>)}
          </select>
        )}
        <span class="dim">{pod.metadata.name} · {shown}</span>
      </div>
      {hasRun(pod, shown)
        ? <Lines key={`${pod.metadata.uid}/${shown}`} of={pod.metadata.name} path={`${pathOf(POD, pod.metadata.namespace, pod.metadata.name)}/log?follow=true&tailLines=${FIRST}&container=${encodeURIComponent(shown)}`} />
        : <div class="empty">It has not started yet.</div>}
    </Card>
  );
}

/** What programs of sandboxes write, one at a time. */
export function SandboxLogs(props: { sandboxes: Resource[] }) {
  const [chosen, setChosen] = useState("");
  const sandbox = props.sandboxes.find((one) => one.metadata.name === chosen) ?? props.sandboxes[0];
  if (!sandbox) return null;
  return (
    <>
      <div class="filters">
        <select aria-label="Sandbox" value={sandbox.metadata.name} onChange={(event) => setChosen(event.currentTarget.value)}>
          {props.sandboxes.map((one) => <option value={one.metadata.name}>{one.metadata.name}</option>)}
        </select>
      </div>
      <SandboxLog key={sandbox.metadata.uid} namespace={sandbox.metadata.namespace ?? ""} name={sandbox.metadata.name} />
    </>
  );
}

/** What the program of a sandbox writes. */
export function SandboxLog(props: { namespace: string; name: string }) {
  return <Card><Lines of={props.name} path={`/sandbox-logs/${props.namespace}/${props.name}`} /></Card>;
}

function Lines(props: { of: string; path: string }) {
  const [lines, setLines] = useState<string[]>([]);
  const [end, setEnd] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    const pending: string[] = [];
    let timer: number | undefined;
    const show = () => {
      timer = undefined;
      const arrived = pending.splice(0);
      setLines((before) => [...before, ...arrived].slice(-MOST));
    };
    const stop = follow(props.path, {
      line: (text) => {
        pending.push(text);
        timer ??= setTimeout(show, 50);
      },
      end: (code, message) => setEnd(code === 200 ? "It has ended." : message),
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [props.path]);
  useEffect(() => {
    if (atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = () => {
    const it = box.current;
    if (it) atEnd.current = it.scrollHeight - it.scrollTop - it.clientHeight < 24;
  };
  return (
    <>
      <pre class="log" ref={box} tabIndex={0} role="log" aria-label={`Log of ${props.of}`} onScroll={scrolled}>{lines.join("\n")}</pre>
      <p class="dim foot">{end || (lines.length === 0 ? "Nothing written yet; waiting for more…" : `${lines.length} ${lines.length === 1 ? "line" : "lines"}; following`)}</p>
    </>
  );
}
