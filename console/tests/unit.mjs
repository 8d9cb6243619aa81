// What pages read out of objects, without a browser. `cargo xtask check` runs it.
import { build } from "esbuild";
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const directory = await mkdtemp(join(tmpdir(), "console-unit-"));
const load = async (name, from = "src", end = "ts") => {
  const outfile = join(directory, `${from}-${name.replaceAll("/", "-")}.mjs`);
  await build({
    entryPoints: [join(root, from, `${name}.${end}`)], outfile, bundle: true, format: "esm", platform: "node", logLevel: "error",
    jsx: "automatic", jsxImportSource: "preact", nodePaths: [join(root, "node_modules")],
  });
  return import(outfile);
};

try {
  const { age, session, happening, podState, phase, startOf } = await load("objects");
  const { wrong } = await load("problems");
  const { parts, mergePatch, edits } = await load("yaml-object");

  const now = Date.parse("2026-01-03T00:00:00Z");
  for (const [then, text] of [
    ["2026-01-03T00:00:05Z", "0s"], ["2026-01-02T23:58:01Z", "119s"], ["2026-01-02T23:57:55Z", "2m5s"], ["2026-01-02T23:55:00Z", "5m"],
    ["2026-01-02T22:00:00Z", "120m"], ["2026-01-02T10:00:00Z", "14h"], ["2026-01-01T00:00:00Z", "2d"], ["nonsense", ""], [undefined, ""],
  ]) assert.equal(age(then, now), text, String(then));

  const lease = (holder, change = () => undefined) => {
    const made = {
      metadata: {
        name: "session-1", namespace: "prod", uid: "l", resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z",
        labels: { "agentcube.io/lease": "session", "agentcube.io/task-uid": "t" }, annotations: { "agentcube.io/reserve-key": "ada" },
        ownerReferences: [{ kind: "Task", name: "chat", uid: "t" }],
      },
      spec: { holderIdentity: holder, renewTime: "2026-01-01T00:01:00Z" },
    };
    change(made.metadata);
    return session(made);
  };
  assert.deepEqual([lease("chat-0/p").state, lease("chat-0/p").instance, lease("chat-0/p").task, lease("chat-0/p").key], ["bound", "chat-0", "chat", "ada"]);
  assert.deepEqual([lease("sandbox/chat-1/p").instance, lease("sandbox/chat-1/p").onPool], ["chat-1", true]);
  assert.equal(lease("").state, "waiting");
  assert.equal(lease("a/b", (meta) => (meta.annotations["agentcube.io/releasing"] = "idle")).state, "releasing");
  assert.equal(lease("a/b", (meta) => (meta.annotations["agentcube.io/rests"] = "7")).state, "paused");
  assert.equal(lease("a/b", (meta) => (meta.deletionTimestamp = "2026-01-01T00:02:00Z")).state, "ending");
  assert.equal(lease("a/b", (meta) => (meta.labels["agentcube.io/lease"] = "router")), null);

  const meta = { name: "a", namespace: "n", uid: "u", resourceVersion: "1", creationTimestamp: "2026-01-01T00:00:00Z" };
  assert.equal(happening({ metadata: meta, regarding: { kind: "Pod", name: "p" }, note: "x", series: { count: 3 } }).count, 3);
  assert.equal(happening({ metadata: meta, involvedObject: { kind: "Pod", name: "p" }, message: "y" }).message, "y");

  const crashing = { metadata: meta, status: { phase: "Running", containerStatuses: [{ name: "c", state: { waiting: { reason: "CrashLoopBackOff", message: "back-off" } } }] } };
  assert.deepEqual([podState(crashing).tone, wrong(crashing, "Pod").why], ["bad", "back-off"]);
  const nowhere = { metadata: meta, status: { phase: "Pending", conditions: [{ type: "PodScheduled", status: "False", message: "no room" }] } };
  assert.equal(wrong(nowhere, "Pod").why, "no room");
  const well = { metadata: meta, status: { phase: "Running", conditions: [{ type: "Ready", status: "True", lastTransitionTime: "2026-01-01T00:00:02Z" }] } };
  assert.equal(wrong(well, "Pod"), null);
  const frontEnd = (phase, reason, message) => {
    const said = { status: phase === "Succeeded" ? "True" : "False", reason, message, lastTransitionTime: "2026-01-01T00:00:02Z" };
    return wrong({ metadata: meta, status: { phase, message, conditions: [{ type: "Built", ...said }, { type: "Ready", ...said }] } }, "FrontendIntegration");
  };
  const unbuilt = frontEnd("Failed", "SpecInvalid", "there is no page none");
  assert.deepEqual([unbuilt.what, unbuilt.where, unbuilt.why, unbuilt.page], ["Failed", "FrontendIntegration n/a", "there is no page none", "/ui/frontends/n/a"]);
  // What is under way, switched off or done is not wrong.
  for (const phase of ["Building", "Disabled", "Succeeded"]) assert.equal(frontEnd(phase, phase, "it says so"), null, phase);
  assert.deepEqual(startOf(well), [{ step: "Ready", seconds: 2 }]);
  assert.deepEqual(startOf({ metadata: meta }), []);

  const object = (status) => ({ metadata: meta, status });
  const lacks = { type: "RouteReady", status: "False", reason: "GatewayMissing", message: "there is no gateway" };
  assert.deepEqual([wrong(object({ phase: "Pending", conditions: [lacks] }), "Task").what], ["GatewayMissing"]);
  assert.equal(wrong(object({ phase: "Serving", conditions: [{ type: "Ready", status: "True" }] }), "Task"), null);
  assert.equal(wrong(object({ phase: "Provisioning", conditions: [{ type: "Ready", status: "False", reason: "Progressing", message: "1 to go" }] }), "App"), null, "under way");
  assert.equal(wrong(object({ phase: "Running", conditions: [{ type: "PendingChange", status: "False" }] }), "App"), null, "good when false");
  assert.equal(wrong(object({ phase: "Failed", conditions: [{ type: "Ready", status: "False", message: "why" }] }), "App").why, "why");
  assert.equal(wrong(object({ conditions: [{ type: "Ready", status: "False", reason: "NoAgents", message: "none" }] }), "SandboxPool").what, "NoAgents");
  assert.equal(phase(object({ conditions: [] })).text, "Pending");

  assert.deepEqual(mergePatch({ a: 1, b: { c: 2, d: [1] }, e: 5 }, { a: 1, b: { c: 3, d: [1, 2] } }), { b: { c: 3, d: [1, 2] }, e: null });
  assert.equal(mergePatch({ a: { b: [1] } }, { a: { b: [1] } }), undefined);
  const edited = (spec, version) => ({ metadata: { ...meta, resourceVersion: version }, spec, status: { seen: version } });
  assert.deepEqual(edits(edited({ a: 1 }, "1"), edited({ a: 2 }, "1")), { spec: { a: 2 } });
  assert.equal(edits(edited({ a: 1 }, "1"), edited({ a: 1 }, "2")), undefined, "what controllers write is not an edit");
  assert.deepEqual(parts("spec.a[0].b"), ["spec", "a", 0, "b"]);
  assert.deepEqual(parts("metadata.labels[app.io/name]"), ["metadata", "labels", "app.io/name"]);

  // Manifests of extensions: whatever is wrong is said, whatever is hostile is nothing.
  const { readManifest, routeOf, standing, versionOf } = await load("extensions/manifest");
  const crd = { group: "agentcube.io", version: "v1alpha1", plural: "tasks", kind: "Task", scope: "Namespaced" };
  const manifest = {
    name: "m", displayName: "Mine", pages: [{ id: "p", entryComponent: "CrdTable", props: { resource: crd, columns: [] } }, { id: "s", entryComponent: "Iframe", props: { src: "https://a/" } }],
    routes: [{ path: "tasks", pageId: "p" }, { path: "tasks/site", pageId: "s" }],
    menus: [{ parent: "global", name: "tasks/site", title: "site", order: 2 }, { parent: "global", name: "tasks", title: "t", order: 1 }, { parent: "cluster", name: "tasks", title: "t" }, { parent: "global", name: "gone", title: "t" }],
    locales: [{ lang: "en", messages: { t: "Tasks", site: "Site" } }, { lang: "de", messages: { t: "Aufgaben" } }],
  };
  const parsed = readManifest(manifest, ["de-AT", "en"]);
  assert.deepEqual(parsed.menu.map(({ path, title }) => [path, title]), [["tasks", "Aufgaben"], ["tasks/site", "Site"]]);
  assert.deepEqual(parsed.pages.get("p").resource, crd);
  assert.deepEqual([routeOf(parsed, ["tasks", "view", "a"]).rest, routeOf(parsed, ["tasks", "site"]).page.id, routeOf(parsed, ["other"])], ["view/a", "s", null]);
  const broken = (change) => {
    const copy = structuredClone(manifest);
    change(copy);
    return () => readManifest(copy, ["en"]);
  };
  assert.throws(broken((copy) => (copy.pages = [])), /no pages/);
  assert.throws(broken((copy) => (copy.routes = [])), /no routes/);
  assert.throws(broken((copy) => (copy.routes[0].pageId = "none")), /not there/);
  assert.throws(broken((copy) => (copy.routes[0].path = "../ui")), /route that is none/);
  assert.throws(broken((copy) => (copy.pages[0].props.resource.plural = "tasks/../secrets")), /cannot be one/);
  assert.throws(() => readManifest([], ["en"]), /no object/);
  const hash = "a".repeat(64);
  const integration = (spec, status, more = {}) => ({ metadata: { ...meta, ...more }, spec, status });
  const bundle = (labels, more = {}) => ({ metadata: { ...meta, name: "fi-a", uid: "b", generation: 3, labels, ...more } });
  const fitting = bundle({ "frontend-forge.io/spec-hash": hash.slice(0, 63), "frontend-forge.io/fi-name": "a" });
  const status = { observed_spec_hash: `sha256:${hash}` };
  assert.deepEqual(standing(integration({}, status), [fitting]), { state: "current", bundle: "fi-a", version: "b/3" });
  assert.deepEqual(standing(integration({}, { ...status, bundle_ref: { name: "fi-a" } }), [fitting]).state, "current");
  assert.deepEqual(standing(integration({}, { ...status, bundle_ref: { name: "other" } }), [fitting]).state, "building");
  assert.deepEqual(standing(integration({}, { observed_spec_hash: "sha256:b" }), [fitting]).state, "building", "an older bundle is not shown");
  assert.deepEqual(standing(integration({}, {}), [bundle({ "frontend-forge.io/fi-name": "a", "frontend-forge.io/spec-hash": "" })]).state, "building");
  assert.deepEqual(standing(integration({ enabled: false }, status), [fitting]).state, "off");
  assert.deepEqual(standing(integration({}, status, { deletionTimestamp: "x" }), [fitting]).state, "off");
  assert.deepEqual(standing(integration({}, status, { namespace: "other" }), [fitting]).state, "building");
  assert.equal(versionOf(fitting.metadata), "b/3");

  // The library's YAML, held against the one that the console uses.
  const { read, write, Mistake } = await load("yaml", "extension");
  const real = await import(join(root, "node_modules/yaml/dist/index.js"));
  const values = [
    null, true, 3, -1.5, "", "a", " a", "a ", "true", "no", "1", "1e3", "0x10", "2026-01-01", "a: b", "a #b", "#a", "- a", "-a", "a\nb", "a\n", "a\n\n", "\na", "a\tb", "a\n  b\n c", "'", '"', "@a", "*a", "&a", "!a", "%a", "|", ">", "[a", "{a", "a,b", "ä", "日本", "~", "y", "?", "? a", ":", "a:", "x: y: z", "\u0001", "=", "<<", ".5", "+1", "1_000", "12:30",
    [], {}, [[]], [{}], [[1, [2]], [3]], { a: [] }, { a: {} }, { a: { b: { c: [1, { d: "x\ny" }] } } }, [{ a: 1, b: [2] }, { c: null }], { "a b": 1, "": 2, "1": 3, "a: b": 4, "#": 5, true: 6 }, { a: "x\n", b: "y\n\n" }, [["x\ny\n"], "z"],
  ];
  for (const value of values) {
    assert.deepEqual(read(write(value)), value, `ours by ours: ${JSON.stringify(write(value))}`);
    assert.deepEqual(real.parse(write(value)), value, `ours by theirs: ${JSON.stringify(write(value))}`);
    assert.deepEqual(read(JSON.stringify(value)), value, "JSON is YAML");
    assert.deepEqual(read(real.stringify(value, { lineWidth: 0 })), value, `theirs by ours: ${real.stringify(value, { lineWidth: 0 })}`);
  }
  for (const text of [
    "a: 1 # why\nb:\n- x\n- y: 2\n  z: 3\nc: {d: [1, two, 'three'], \"e\": null}\n", "# a\n---\na:\n  b: |\n    x\n     y\n\n    z\n  c: >-\n    one\n    two\n\n    three\n", "- - 1\n  - 2\n- a:\n    b\n", "a: [1,\n  2]\nb: \"x\n  y\"\n", "a: http://b/c?d=e:80\n", "a:\n\n  - 1\n", "'a b' : 1\n", "a: |+\n  x\n\nb: 1\n", "command: [\"/bin/sh\", \"-c\", \"a; b\"]\n",
  ]) assert.deepEqual(read(text), real.parse(text), text);
  for (const [text, line] of [["a: 1\na: 2", 2], ["a: &x 1", 1], ["a: *x", 1], ["a:\n\tb: 1", 2], ["a: [1, 2", 1], ["a: 1\n---\nb: 2", 2], ["a: b: c", 1], ["a: 1\n  b: 2", 2], ["a\nb", 2], ["a: x\n  y", 2], ["{a: 1} b", 1], ["a: !!str 1", 1], ["- a\nb: 1", 2]]) {
    assert.throws(() => read(text), (error) => error instanceof Mistake && error.line === line, `${text}: line ${line}`);
  }
  assert.equal(({}).polluted, undefined);
  assert.deepEqual(Object.keys(read("__proto__: {polluted: 1}")), ["__proto__"]);
  assert.equal(({}).polluted, undefined);

  const { at, filled, safeLink, said, sortKey, timeOf, put } = await load("values", "extension");
  const thing = { metadata: { name: "x", labels: { "a.io/b": "c" } }, spec: { list: [{ n: 1 }, { n: 2 }] } };
  assert.deepEqual([at(thing, ".metadata.name"), at(thing, 'metadata.labels["a.io/b"]'), at(thing, "spec.list[1].n"), at(thing, "spec.none.more"), at(thing, "constructor.name")], ["x", "c", 2, undefined, undefined]);
  assert.deepEqual([said([1, "a"]), said({ a: 1 }), said(false), said(null)], ["1, a", '{"a":1}', "false", ""]);
  assert.equal(filled("https://a/{metadata.name}?q={value}", "b c", thing, encodeURIComponent), "https://a/x?q=b%20c");
  assert.deepEqual([safeLink("javascript:alert(1)"), safeLink("https://a/b"), safeLink("nonsense"), safeLink("data:text/html,x")], [null, "https://a/b", null, null]);
  assert.equal(timeOf("2026-01-03T01:02:03.5Z", "utc", "en"), "2026-01-03 01:02:03Z");
  assert.equal(timeOf("soon", "utc", "en"), "soon");
  assert.deepEqual([sortKey({ render: { path: "spec.n" } }, { metadata: {}, spec: { n: 10 } }), sortKey({ render: { path: "spec.n", type: "time" } }, { metadata: {}, spec: { n: "2026-01-01T00:00:00Z" } })], [10, Date.parse("2026-01-01T00:00:00Z")]);
  assert.deepEqual(put({ a: { b: 1 } }, ["a", "b"], undefined), { a: {} });

  const { showable, titleOf } = await load("form", "extension", "tsx");
  const { ownPart } = await load("edit", "extension", "tsx");
  assert.equal(titleOf("minInstances"), "Min instances");
  const string = { type: "string" };
  for (const [schema, depth, shown] of [
    [string, 0, true], [{ type: "array", items: string }, 0, true], [{ type: "object", properties: { a: string } }, 0, true], [{ type: "object", properties: { a: string } }, 4, false],
    [{ type: "object", "x-kubernetes-preserve-unknown-fields": true }, 0, false], [{ type: "object", additionalProperties: string }, 0, true], [{ type: "object", additionalProperties: true }, 0, false],
    [{ "x-kubernetes-int-or-string": true }, 0, true], [{}, 0, false], [{ type: "array", items: { type: "array", items: string } }, 0, false],
    [{ type: "object", properties: Object.fromEntries(Array.from({ length: 41 }, (_, n) => [`f${n}`, string])) }, 0, false],
  ]) assert.equal(showable(schema, depth), shown, JSON.stringify(schema).slice(0, 80));
  assert.deepEqual(Object.keys(ownPart({ type: "object", properties: { apiVersion: string, kind: string, metadata: {}, spec: {}, status: {}, data: {} } }).properties), ["spec", "data"]);
  assert.equal(ownPart(null), null);

  // Metrics, as Prometheus writes them.
  const { figures, quantile, seconds, since } = await load("figures");
  const bucket = (path, le, count) => `agentcube_reserve_seconds_bucket{namespace="n",task="t",path="${path}",le="${le}"} ${count}`;
  const metrics = [
    bucket("reused", "0.001", 8), bucket("reused", "0.01", 10), bucket("reused", "+Inf", 10), 'agentcube_reserve_seconds_count{namespace="n",task="t",path="reused"} 10', 'agentcube_reserve_seconds_sum{namespace="n",task="t",path="reused"} 0.02',
    'agentcube_sessions{namespace="n",task="t"} 4', 'agentcube_sessions{namespace="n",task="other"} 9', 'agentcube_requests_in_flight{namespace="n",task="t"} 1',
  ].join("\n");
  const counted = figures(metrics, "n", "t", 5);
  assert.deepEqual([counted.sessions, counted.inFlight, counted.waiting, counted.paths.get("reused").count, counted.paths.has("waited")], [4, 1, 0, 10, false]);
  assert.equal(quantile(counted.paths.get("reused"), 0.4), 0.0005);
  assert.ok(Math.abs(quantile(counted.paths.get("reused"), 0.9) - 0.0055) < 1e-9);
  assert.equal(quantile({ bounds: [1, Infinity], counts: [0, 2], count: 2, sum: 9 }, 0.5), 1);
  assert.equal(quantile({ bounds: [1], counts: [0], count: 0, sum: 0 }, 0.5), null);
  assert.deepEqual(since({ bounds: [1], counts: [5], count: 5, sum: 5 }, { bounds: [1], counts: [3], count: 3, sum: 3 }), { bounds: [1], counts: [2], count: 2, sum: 2 });
  assert.deepEqual([seconds(0.00002), seconds(0.0042), seconds(0.25), seconds(3.14159), seconds(null)], ["20 µs", "4.2 ms", "250 ms", "3.14 s", "–"]);
} finally {
  await rm(directory, { recursive: true });
}
