// Front ends: integrations, how they were built, and what came of it.

import { useState } from "preact/hooks";
import { Refusal, send } from "../api";
import { FI_NAME, SPEC_HASH, standing } from "../extensions/manifest";
import { addressOf, useKnownExtensions } from "../extensions/registry";
import { BUNDLE, FRONTEND, JOB, pathOf, POD } from "../kinds";
import { conditions, phase, type Resource, type Tone } from "../objects";
import { Link } from "../router";
import { useKind, useKindIn } from "../scope";
import { Age, Badge, Button, Card, Facts, Table, Title, Trouble } from "../ui/parts";
import { Logs } from "./logs";
import { ObjectPage, type ObjectPlace } from "./object";
import { columns, link, ListCard } from "./others";

const REBUILD = "frontend-forge.io/rebuild";

/** What an integration shows, in a word. */
const kindOf = (one: Resource): string => one.spec?.integration?.type ?? `${one.spec?.pages?.length ?? 0} pages`;
/** The beginning of a hash, which is enough to tell two apart. */
const short = (hash: unknown) => (typeof hash === "string" && hash ? <code>{hash.replace(/^sha256:/, "").slice(0, 12)}</code> : "–");

export function Frontends() {
  const { all } = useKnownExtensions();
  // What is in them is large, and nothing to look at here.
  const bundles = useKind(BUNDLE, true);
  const page = (one: Resource) => all.find((extension) => extension.namespace === one.metadata.namespace && extension.name === one.metadata.name);
  return (
    <>
      <Title name="Frontends" actions={<Link to="/ui/new?kind=frontend" class="button main">New front end</Link>}>Frontends</Title>
      <ListCard kind={FRONTEND} title="Integrations" empty="No front end." own={[
        { title: "Shown as", cell: (one) => one.spec?.displayName },
        { title: "Kind", cell: kindOf },
        { title: "Page", cell: (one) => { const found = page(one); return found ? <Link to={addressOf(found)}>Open</Link> : <span class="dim">{one.spec?.enabled === false ? "switched off" : "not yet"}</span>; } },
        { title: "Message", cell: (one) => <span class="message">{one.status?.message}</span> },
      ]} />
      <Card title="Bundles">
        <Trouble of={[bundles]} />
        <Table label="Bundles" rows={bundles.all()} id={(one) => one.metadata.uid} empty={bundles.known ? "No bundle." : "Reading…"} columns={columns(BUNDLE, [
          { title: "For", cell: (one) => one.metadata.labels?.[FI_NAME] ?? "–", key: (one) => one.metadata.labels?.[FI_NAME] ?? "" },
          { title: "Spec", cell: (one) => short(one.metadata.labels?.[SPEC_HASH]) },
        ], (one) => {
          const found = all.find((extension) => extension.namespace === one.metadata.namespace && extension.bundle === one.metadata.name);
          return found ? (found.problem ? { text: "Broken", tone: "bad" } : { text: "Shown", tone: "good" }) : { text: "Not shown", tone: "quiet" };
        })} />
      </Card>
    </>
  );
}

function jobState(job: Resource): { text: string; tone: Tone } {
  const reached = (type: string) => conditions(job).some((one) => one.type === type && one.status === "True");
  if (reached("Failed")) return { text: "Failed", tone: "bad" };
  if (reached("Complete")) return { text: "Succeeded", tone: "good" };
  return { text: job.status?.active ? "Running" : "Pending", tone: "busy" };
}

const madeAt = (one: Resource) => Date.parse(one.metadata.creationTimestamp ?? "") || 0;

/** Builds of an integration, the latest first, and what the one that is chosen wrote. */
function Builds(props: { integration: Resource }) {
  const { namespace = "", name } = props.integration.metadata;
  const [jobs, pods] = [useKindIn(JOB, namespace), useKindIn(POD, namespace)];
  const [chosen, setChosen] = useState("");
  const mine = jobs.all().filter((job) => job.metadata.labels?.[FI_NAME] === name).sort((a, b) => madeAt(b) - madeAt(a));
  const shown = mine.find((job) => job.metadata.name === chosen) ?? mine[0];
  const ofJob = (job: Resource) => pods.all().filter((pod) => pod.metadata.ownerReferences?.some((owner) => owner.uid === job.metadata.uid)).sort((a, b) => madeAt(b) - madeAt(a));
  const took = (job: Resource) => {
    const [from, to] = [Date.parse(job.status?.startTime ?? ""), Date.parse(job.status?.completionTime ?? "")];
    return to >= from ? `${Math.round((to - from) / 1000)} s` : "–";
  };
  return (
    <>
      <Card title="Builds">
        <Trouble of={[jobs]} />
        <Table label="Builds" rows={mine} id={(job) => job.metadata.uid} empty="Nothing was built yet." columns={[
          { title: "Job", cell: (job) => job.metadata.name, key: (job) => job.metadata.name },
          { title: "State", cell: (job) => <Badge tone={jobState(job).tone}>{jobState(job).text}</Badge>, key: (job) => jobState(job).text },
          { title: "Spec", cell: (job) => short(job.metadata.labels?.[SPEC_HASH]) },
          { title: "Took", cell: took },
          { title: "Age", cell: (job) => <Age at={job.metadata.creationTimestamp} />, key: (job) => -madeAt(job) },
          { title: "", cell: (job) => <Button label={`Show the log of ${job.metadata.name}`} disabled={job === shown} onClick={() => setChosen(job.metadata.name)}>Log</Button> },
        ]} />
      </Card>
      {shown && <Logs key={shown.metadata.uid} pods={ofJob(shown)} none="The Pod of this build is gone, and its log with it." />}
    </>
  );
}

export function Frontend(props: { place: ObjectPlace }) {
  const { namespace, name } = props.place;
  const bundles = useKindIn(BUNDLE, namespace, true);
  const { all } = useKnownExtensions();
  const [told, setTold] = useState<{ text: string; bad: boolean } | null>(null);
  const page = all.find((one) => one.namespace === namespace && one.name === name);
  const write = async (patch: unknown, done: string) => {
    try {
      await send("PATCH", `${pathOf(FRONTEND, namespace, name)}?fieldManager=agentcube-console`, patch, "application/merge-patch+json");
      setTold({ text: done, bad: false });
    } catch (error) {
      setTold({ text: error instanceof Refusal ? error.message : String(error), bad: true });
    }
  };
  const rebuild = () => void write({ metadata: { annotations: { [REBUILD]: new Date().toISOString() } } }, "Asked to build it anew.");
  return (
    <ObjectPage
      kind={FRONTEND} list={{ title: "Frontends", to: "/ui/frontends" }} place={props.place}
      facts={(one) => {
        const bundle = bundles.all().find((found) => found.metadata.name === one.status?.bundle_ref?.name);
        return [
          ["Shown as", one.spec?.displayName],
          ["Kind", kindOf(one)],
          ["Enabled", one.spec?.enabled === false ? "no" : "yes"],
          ["Built with", one.spec?.builder?.engineVersion ?? "v1"],
          ["Spec", short(one.status?.observed_spec_hash)],
          ["Manifest", short(one.status?.observed_manifest_hash)],
          ["Build", one.status?.active_build?.job_ref?.name],
          ["Bundle", bundle ? link(BUNDLE, bundle) : "none yet"],
          ["Message", one.status?.message],
        ];
      }}
      more={(one) => {
        const state = standing(one, bundles.items.values()).state;
        const off = one.spec?.enabled === false;
        return (
          <Card title="Its page" class="wide">
            {told && <p role={told.bad ? "alert" : "status"} class={told.bad ? "flaw" : "dim"}>{told.text}</p>}
            <Facts rows={[
              ["Preview", page ? <Link to={addressOf(page)}>Open {page.title}</Link> : { off: "It is switched off.", building: `There is none: the bundle is not that of the present spec (${phase(one).text}).`, current: "Reading…" }[state]],
              ["", <div class="line">
                <Button onClick={rebuild} disabled={off}>Build anew</Button>
                <Button onClick={() => void write({ spec: { enabled: off } }, off ? "Switched on." : "Switched off.")}>{off ? "Switch on" : "Switch off"}</Button>
              </div>],
            ]} />
          </Card>
        );
      }}
      tabs={(one) => [{ id: "builds", title: "Builds", content: () => <Builds integration={one} /> }]}
    />
  );
}
