// How requests of a Task get their instances, drawn: by which way, how long it took, how many sessions there are; and how its
// instances came up.

import { useEffect, useState } from "preact/hooks";
import { figures, PATHS, quantile, seconds, since, type Figures, type Histogram, type Path } from "../figures";
import { follow } from "../live";
import { startOf, type Resource } from "../objects";
import { Link } from "../router";
import { Lines, Shares, Timeline, type Series } from "../ui/chart";
import { Card, Table } from "../ui/parts";

/** Readings that are kept while the page is open: ten minutes. */
const MOST = 300;
/** A point of a line tells of the requests of so many readings. */
const WINDOW = 5;

function useFigures(namespace: string, task: string): { read: Figures[]; problem: string } {
  const [read, setRead] = useState<Figures[]>([]);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let stop: () => void = () => undefined;
    let timer: number | undefined;
    const start = () => {
      stop = follow("/figures", {
        line: (text) => {
          const { figures: metrics } = JSON.parse(text) as { figures: string };
          setProblem("");
          setRead((before) => [...before, figures(metrics, namespace, task, Date.now())].slice(-MOST));
        },
        end: (code, message) => {
          if (code >= 400) setProblem(message);
          // A connection that broke is made again; what is refused stays so.
          if (code === 0 || code >= 500) timer = setTimeout(start, 3000);
        },
      });
    };
    start();
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [namespace, task]);
  return { read, problem };
}

interface Row {
  path: Path;
  title: string;
  what: string;
  tone: number;
  all: Histogram | undefined;
}

export function Reservations(props: { task: Resource }) {
  const { namespace = "", name } = props.task.metadata;
  const { read, problem } = useFigures(namespace, name);
  const now = read.at(-1);
  if (problem) return <Card title="Requests"><div class="empty">{problem}</div></Card>;
  if (!now) return <Card title="Requests"><div class="empty">Reading…</div></Card>;
  const rows: Row[] = PATHS.map(([path, title, what], tone) => ({ path, title, what, tone, all: now.paths.get(path) }));
  const from = Math.min(now.at - 60_000, read[0]?.at ?? now.at);
  const lines: Series[] = rows.map(({ path, title, tone }) => ({
    name: title, tone,
    points: read.map((one, n) => {
      const [histogram, earlier] = [one.paths.get(path), read[Math.max(0, n - WINDOW)]?.paths.get(path)];
      if (!histogram || n === 0) return { at: one.at, value: null };
      // Of what came before the page was opened, nothing is known but the whole.
      return { at: one.at, value: quantile(since(histogram, earlier ?? { ...histogram, counts: histogram.counts.map(() => 0), count: 0, sum: 0 }), 0.5) };
    }),
  }));
  const gauge = (title: string, tone: number, value: (one: Figures) => number): Series => ({ name: title, tone, points: read.map((one) => ({ at: one.at, value: value(one) })) });
  return (
    <div class="columns">
      <Card title="Ways to an instance" class="wide" more={<span class="dim">since the router started</span>}>
        <div class="drawn"><Shares label="Requests by their way to an instance" parts={rows.map((row) => ({ name: row.title, tone: row.tone, value: row.all?.count ?? 0 }))} /></div>
        <Table label="Ways to an instance" rows={rows} id={(row) => row.path} columns={[
          { title: "Way", cell: (row) => <span class={`key tone-${row.tone}`}><span class="swatch" aria-hidden="true" />{row.title}</span> },
          { title: "What it means", cell: (row) => <span class="dim">{row.what}</span> },
          { title: "Requests", number: true, cell: (row) => row.all?.count ?? 0 },
          { title: "Half within", number: true, cell: (row) => seconds(row.all ? quantile(row.all, 0.5) : null) },
          { title: "90 % within", number: true, cell: (row) => seconds(row.all ? quantile(row.all, 0.9) : null) },
          { title: "99 % within", number: true, cell: (row) => seconds(row.all ? quantile(row.all, 0.99) : null) },
        ]} />
      </Card>
      <Card title="Time to an instance" more={<span class="dim">half of the requests, while this page is open</span>}>
        <Lines label="Time to an instance" series={lines} from={from} to={now.at} write={(value) => (value === 0 ? "0" : seconds(value))} />
      </Card>
      <Card title="Sessions and requests">
        <Lines label="Sessions and requests" from={from} to={now.at} write={(value) => String(Number.isInteger(value) ? value : value.toFixed(1))} series={[
          gauge("Sessions", 0, (one) => one.sessions), gauge("Requests under way", 3, (one) => one.inFlight), gauge("Waiting for an instance", 4, (one) => one.waiting),
        ]} />
      </Card>
    </div>
  );
}

const STEPS = ["Scheduled", "Initialized", "Started", "Ready"];

/** How the instances of a Task came up, one below the other. */
export function Starts(props: { pods: Resource[] }) {
  const rows = props.pods.map((pod) => ({ pod, steps: startOf(pod) })).filter((row) => row.steps.length > 0);
  const whole = Math.max(1, ...rows.flatMap((row) => row.steps.map((step) => step.seconds)));
  // Kubernetes writes times down to the second.
  const write = (value: number) => (value < 1 ? "< 1 s" : `${value.toFixed(value % 1 ? 1 : 0)} s`);
  return (
    <Card title="How instances started" more={<span class="dim">seconds after each was made</span>}>
      <Table label="How instances started" rows={rows} id={(row) => row.pod.metadata.uid} empty="No instance has started yet." columns={[
        { title: "Instance", cell: (row) => <Link to={`/ui/pods/${row.pod.metadata.namespace}/${row.pod.metadata.name}`}>{row.pod.metadata.name}</Link>, key: (row) => row.pod.metadata.name },
        {
          title: "Timeline",
          cell: (row) => <Timeline label={row.pod.metadata.name} whole={whole} write={write} parts={row.steps.map((step, n) => ({ name: step.step, tone: STEPS.indexOf(step.step), from: row.steps[n - 1]?.seconds ?? 0, to: step.seconds }))} />,
        },
        ...STEPS.map((name, tone) => ({
          title: name, number: true,
          cell: (row: (typeof rows)[number]) => { const found = row.steps.find((step) => step.step === name); return found ? <span class={`key tone-${tone}`}>{write(found.seconds)}</span> : "–"; },
        })),
      ]} />
    </Card>
  );
}
