// Trials of the real forge: what a user writes is built by a Job and esbuild, and shown. Nothing is put in by hand.

import { withSite } from "./site.mjs";

const FORGE = "/apis/frontend-forge.io/v1alpha1/namespaces/default";
const JOBS = "/apis/batch/v1/namespaces/default/jobs";
const NAME = "agent-tasks";
/** A whole build: a Job, its Pod and esbuild, on a loaded machine. */
const BUILD = { timeout: 180_000 };

const YAML = `apiVersion: frontend-forge.io/v1alpha1
kind: FrontendIntegration
metadata:
  name: ${NAME}
spec:
  displayName: Agent tasks
  integration:
    type: crd
    crd:
      names: {kind: Task, plural: tasks}
      group: agentcube.io
      version: v1alpha1
  routing:
    path: agents/tasks
  columns:
  - key: name
    title: Name
    enableSorting: true
    render: {type: text, path: metadata.name}
  - key: most
    title: Most instances
    enableSorting: true
    render: {type: text, path: spec.scaling.maxInstances}
  - key: created
    title: Created
    render: {type: time, path: metadata.creationTimestamp}
  menu:
    name: Agent tasks
    placements: [global]
`;

export function forge(world) {
  const { CONSOLE, api, agentcube, ensure, heading, shot, accessible, deployed, origins } = world;
  const menu = (page, name) => page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name, exact: true });
  const inside = (page) => page.frameLocator("iframe.extension");
  const tab = (page, name) => page.getByRole("main").getByRole("link", { name, exact: true });
  const integration = () => api("GET", `${FORGE}/frontendintegrations/${NAME}`);
  const bundle = () => api("GET", `${FORGE}/jsbundles/fi-${NAME}`);
  const mine = async () => (await api("GET", JOBS)).items.filter((job) => job.metadata.labels?.["frontend-forge.io/fi-name"] === NAME);
  const headers = async (page) => (await inside(page).getByRole("columnheader").allTextContents()).map((text) => text.replace(/\W+$/, "").trim()).filter((text) => text);
  /** Its row among all front ends. */
  const row = (page, says) => page.getByRole("row", { name: new RegExp(`^${NAME} default ${says}`) });
  const toFrontEnd = async (page) => {
    await menu(page, "Frontends").click();
    await heading(page, "Frontends");
    await page.getByRole("link", { name: NAME, exact: true }).click();
    await heading(page, NAME);
  };

  return {
    "a front end of a user: built, shown, used, changed, switched off and on": async () => {
      const { page } = world;
      await deployed();
      await page.goto(`${CONSOLE}/ui/frontends`);
      await heading(page, "Frontends");
      // From here on the page is never loaded again: this would be lost.
      await page.evaluate(() => {
        globalThis.phases = [];
        new MutationObserver(() => {
          const [found] = /Building|Succeeded|Failed/.exec(document.querySelector("main")?.textContent ?? "") ?? [];
          if (found && globalThis.phases.at(-1) !== found) globalThis.phases.push(found);
        }).observe(document.body, { childList: true, subtree: true, characterData: true });
      });
      await page.getByRole("link", { name: "New front end" }).click();
      await page.getByLabel("YAML", { exact: true }).fill(YAML);
      await page.getByRole("button", { name: "Create" }).click();
      await heading(page, NAME);
      await page.getByText("Succeeded", { exact: true }).first().waitFor(BUILD);
      const phases = await page.evaluate(() => globalThis.phases);
      // A browser that waits for the processor may draw only the end of it; the events have all of it.
      ensure(["Building,Succeeded", "Succeeded"].includes(phases.join()), `it is seen being built: ${phases}`);
      await page.getByRole("link", { name: "Open Agent tasks" }).waitFor();
      await accessible(page, "a front end that was built");
      await shot(page, "forge-built");
      await tab(page, "Builds").click();
      await page.getByRole("row", { name: new RegExp(`^fi-${NAME}-[0-9a-f]{8}-1 Succeeded`) }).waitFor();
      await page.getByRole("log").getByText(`JSBundle fi-${NAME} is written`).waitFor();
      await accessible(page, "the build of a front end");
      await shot(page, "forge-log");
      await tab(page, "Events").click();
      await page.getByRole("row", { name: /BuildStarted/ }).waitFor();
      await page.getByRole("row", { name: /BuildSucceeded/ }).waitFor();
      await shot(page, "forge-events");
      await menu(page, "Frontends").click();
      await row(page, "Succeeded .* Open").waitFor();
      await shot(page, "forge-list");

      // Its page, by the menu.
      await menu(page, "Agent tasks").click();
      await heading(page, "Agent tasks");
      const table = inside(page);
      await table.getByRole("row", { name: /^hello 10 / }).waitFor();
      ensure((await headers(page)).slice(0, 3).join() === "Name,Most instances,Created", `columns: ${await headers(page)}`);
      await shot(page, "forge-table");
      await table.getByRole("button", { name: "Edit hello" }).click();
      const most = table.getByLabel("Max instances");
      await most.fill("7");
      await shot(page, "forge-form");
      await table.getByRole("button", { name: "Save" }).click();
      await page.getByText("Task hello is saved.").waitFor();
      await page.waitForURL(/\/view\/default\/hello$/);
      const stored = JSON.parse(await agentcube("get", "task", "hello", "-o", "json"));
      ensure(stored.spec.scaling.maxInstances === 7, `stored: ${stored.spec.scaling.maxInstances}`);
      await menu(page, "Agent tasks").click();
      await table.getByRole("row", { name: /^hello 7 / }).waitFor();

      // Another title, and one column more.
      const [old] = await mine();
      const before = await bundle();
      await toFrontEnd(page);
      await tab(page, "YAML").click();
      await page.getByRole("button", { name: "Edit" }).click();
      const area = page.getByLabel("YAML", { exact: true });
      const changed = (await area.inputValue())
        .replaceAll("Agent tasks", "Agents at work")
        .replace(/^( *)columns:\n( *)- /m, "$1columns:\n$2- key: sort\n$2  title: Kind of instance\n$2  render: {type: text, path: spec.deployment.type}\n$2- ");
      ensure(changed.includes("key: sort"), `it has columns: ${changed}`);
      await area.fill(changed);
      await page.getByText("Valid.").waitFor();
      await page.getByRole("button", { name: "Save" }).click();
      await page.getByText("Saved.").waitFor();
      await menu(page, "Agents at work").click(BUILD);
      await heading(page, "Agents at work");
      await table.getByRole("row", { name: /^pod hello 7 / }).waitFor();
      ensure((await headers(page)).slice(0, 4).join() === "Kind of instance,Name,Most instances,Created", `columns: ${await headers(page)}`);
      ensure((await menu(page, "Agent tasks").count()) === 0, "the old title is gone");
      await shot(page, "forge-changed");
      // The page is there as soon as its bundle is; the Job still has to end.
      await toFrontEnd(page);
      await page.getByText("Succeeded", { exact: true }).first().waitFor();
      const built = await integration();
      const current = await bundle();
      ensure(built.status.phase === "Succeeded" && built.status.builds === 2, `built: ${JSON.stringify(built.status)}`);
      ensure(current.metadata.generation > before.metadata.generation, "the bundle is another");

      // The Job of the old spec, at its work only now. Nobody owns it, so nobody stops it.
      const labels = old.spec.template.metadata.labels;
      const template = { metadata: { labels: Object.fromEntries(Object.entries(labels).filter(([name]) => name.startsWith("frontend-forge.io/"))) }, spec: old.spec.template.spec };
      await api("POST", JOBS, { apiVersion: "batch/v1", kind: "Job", metadata: { name: "late-build", labels: template.metadata.labels }, spec: { backoffLimit: 0, template } });
      await toFrontEnd(page);
      await tab(page, "Builds").click();
      await page.getByRole("row", { name: /^late-build Failed/ }).waitFor(BUILD);
      // Of two Jobs of the same second either may be the first, whose log is shown.
      const log = page.getByRole("button", { name: "Show the log of late-build" });
      if (await log.isEnabled()) await log.click();
      await page.getByRole("log").getByText("nothing is written").waitFor();
      await shot(page, "forge-late");
      const after = await bundle();
      // Its controller may still write its status.
      const own = ({ metadata: { uid, generation, labels, annotations }, spec }) => JSON.stringify({ uid, generation, labels, annotations, spec });
      ensure(own(after) === own(current), "the bundle is as it was");
      const { status } = await integration();
      ensure(status.phase === "Succeeded" && status.builds === 2, `the status is as it was: ${JSON.stringify(status)}`);
      await menu(page, "Agents at work").click();
      await table.getByRole("columnheader", { name: "Kind of instance" }).waitFor();

      // Off, and on again.
      await toFrontEnd(page);
      await page.getByRole("button", { name: "Switch off" }).click();
      await menu(page, "Agents at work").waitFor({ state: "detached" });
      await page.getByText("Disabled", { exact: true }).first().waitFor();
      await page.getByText("It is switched off.").waitFor();
      await shot(page, "forge-off");
      const jobs = (await mine()).map((job) => job.metadata.name).sort().join();
      await page.getByRole("button", { name: "Switch on" }).click();
      await menu(page, "Agents at work").click();
      await table.getByRole("row", { name: /^pod hello 7 / }).waitFor();
      await toFrontEnd(page);
      await page.getByText("Succeeded", { exact: true }).first().waitFor();
      const again = await integration();
      ensure(again.status.phase === "Succeeded" && again.status.builds === 2, `nothing is built: ${JSON.stringify(again.status)}`);
      ensure((await mine()).map((job) => job.metadata.name).sort().join() === jobs, "there is no other Job");
      const kept = await bundle();
      ensure(kept.metadata.uid === current.metadata.uid && kept.metadata.generation === current.metadata.generation, "the bundle is the same");
      ensure(await page.evaluate(() => Array.isArray(globalThis.phases)), "the page was never loaded again");

      // What is deleted goes, and takes what was built with it.
      await page.getByRole("button", { name: "Delete" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      await heading(page, "Frontends");
      await menu(page, "Agents at work").waitFor({ state: "detached" });
      await page.getByRole("region", { name: "Bundles" }).getByText(`fi-${NAME}`).waitFor({ state: "detached" });
      await api("DELETE", `${JOBS}/late-build?propagationPolicy=Background`);
    },
    "a front end that cannot be built is among what is wrong, until it can": () => withSite(async (address) => {
      const { page } = world;
      origins.push(address);
      const src = `${address}/boards?org=1`;
      const path = `${FORGE}/frontendintegrations/unbuilt`;
      const spec = { displayName: "Unbuilt", integration: { type: "iframe", iframe: { src } }, routing: { path: "unbuilt" }, menu: { name: "Unbuilt", placements: ["global"] } };
      await api("POST", `${FORGE}/frontendintegrations`, { apiVersion: "frontend-forge.io/v1alpha1", kind: "FrontendIntegration", metadata: { name: "unbuilt" }, spec: { ...spec, builder: { engineVersion: "v9" } } });
      await page.goto(`${CONSOLE}/ui/`);
      const problem = page.getByRole("listitem").filter({ hasText: "FrontendIntegration default/unbuilt" });
      await problem.getByText("v9").waitFor(BUILD);
      await accessible(page, "overview with a front end that cannot be built");
      await shot(page, "overview-frontend");
      await problem.getByRole("link").click();
      await heading(page, "unbuilt");
      await menu(page, "Overview").click();
      await api("PATCH", path, { spec: { builder: { engineVersion: "v1" } } }, "application/merge-patch+json");
      await menu(page, "Unbuilt").waitFor(BUILD);
      await problem.waitFor({ state: "detached" });
      // Another site, built by the forge: a frame within the frame.
      await menu(page, "Unbuilt").click();
      await heading(page, "Unbuilt");
      await inside(page).frameLocator("iframe").getByRole("heading", { name: "A site of its own" }).waitFor();
      ensure((await page.getByRole("link", { name: "Open in a tab" }).getAttribute("href")) === src, "it can be opened by itself");
      await accessible(page, "a site in a frame, by the forge");
      await shot(page, "forge-site");
      await api("DELETE", path);
      await menu(page, "Unbuilt").waitFor({ state: "detached" });
    }),
  };
}
