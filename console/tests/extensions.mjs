// Trials of extensions: JSBundles as the forge makes them, put in by hand, with the status of their integrations.

import { createHash } from "node:crypto";
import { join } from "node:path";
import { withSite } from "./site.mjs";

const sha256 = (content) => createHash("sha256").update(content).digest("hex");
const FORGE = "/apis/frontend-forge.io/v1alpha1/namespaces/default";
const TASKS = { group: "agentcube.io", version: "v1alpha1", plural: "tasks", kind: "Task", scope: "Namespaced" };
const COLUMNS = [
  { key: "name", title: "Name", enableSorting: true, render: { type: "text", path: "metadata.name" } },
  { key: "max", title: "Most instances", enableSorting: true, render: { type: "text", path: "spec.scaling.maxInstances" } },
  { key: "address", title: "Address", render: { type: "link", path: "status.address" } },
  { key: "made", title: "Made", enableSorting: true, render: { type: "time", path: "metadata.creationTimestamp", format: "utc" } },
];

const tableOf = (title, columns = COLUMNS) => ({
  name: "tasks", displayName: title, routes: [{ path: "all-tasks", pageId: "main" }],
  menus: [{ parent: "global", name: "all-tasks", title: "menu", icon: "list", order: 1 }],
  locales: [{ lang: "en", messages: { menu: title } }], pages: [{ id: "main", entryComponent: "CrdTable", props: { resource: TASKS, columns } }],
});

export function extensions(world) {
  const { CONSOLE, MODULES, require, api, agentcube, ensure, heading, shot, accessible, newContext, newPage, logIn, deployed, complaints, origins } = world;

  /** What the forge builds of a manifest, with the library of pages. */
  const built = async (manifest) => {
    const { outputFiles } = await require("esbuild").build({
      stdin: {
        contents: `import { mount } from "@agentcube/page"; const manifest = ${JSON.stringify(manifest)};
          export const apiVersion = 1; export default (root, host, page) => mount(root, host, page, manifest);`,
        resolveDir: MODULES,
      },
      alias: { "@agentcube/page": join(MODULES, "../crates/forge/assets/page.js") }, bundle: true, format: "esm", minify: true, write: false, outdir: "/",
    });
    return outputFiles[0].text;
  };

  const file = (path, content, contentType) => ({ path, encoding: "base64", content: Buffer.from(content).toString("base64"), sha256: sha256(content), size: Buffer.byteLength(content), contentType });

  /** Puts an integration with its bundle in, as if its build had just ended. */
  const put = async (name, title, module, manifest, change = () => undefined) => {
    const text = typeof manifest === "string" ? manifest : JSON.stringify(manifest);
    const hash = sha256(`${title}${module}${text}`);
    const spec = { displayName: title, enabled: true, integration: { type: "iframe", iframe: { src: "https://example.invalid/" } }, routing: { path: "all-tasks" } };
    const integration = { apiVersion: "frontend-forge.io/v1alpha1", kind: "FrontendIntegration", metadata: { name }, spec };
    await api("PATCH", `${FORGE}/frontendintegrations/${name}?fieldManager=trial&force=true`, integration, "application/apply-patch+yaml");
    const bundle = {
      apiVersion: "frontend-forge.io/v1alpha1", kind: "JSBundle",
      metadata: { name: `fi-${name}`, labels: { "frontend-forge.io/fi-name": name, "frontend-forge.io/spec-hash": hash.slice(0, 63) } },
      spec: { manifest_hash: `sha256:${sha256(text)}`, files: [file("index.js", module, "text/javascript"), file("index.js.map", "{}", "application/json"), file("manifest.json", text, "application/json")] },
    };
    change(bundle);
    await api("PATCH", `${FORGE}/jsbundles/fi-${name}?fieldManager=trial&force=true`, bundle, "application/apply-patch+yaml");
    const status = { phase: "Succeeded", observed_spec_hash: `sha256:${hash}`, bundle_ref: { name: `fi-${name}` } };
    await api("PATCH", `${FORGE}/frontendintegrations/${name}/status`, { status }, "application/merge-patch+json");
  };
  const remove = async (name) => {
    await api("DELETE", `${FORGE}/jsbundles/fi-${name}`);
    await api("DELETE", `${FORGE}/frontendintegrations/${name}`);
  };
  const menu = (page, name) => page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name, exact: true });
  const inside = (page) => page.frameLocator("iframe.extension");
  /** The frame itself, for what locators cannot ask. */
  const frame = async (page) => (await page.locator("iframe.extension").elementHandle()).contentFrame();

  return {
    "an extension comes into the menu, and lists, shows, changes and deletes": async () => {
      const { page } = world;
      await deployed();
      await page.goto(`${CONSOLE}/ui/`);
      await heading(page, "Overview");
      const manifest = tableOf("All Tasks");
      await put("all-tasks", "All Tasks", await built(manifest), manifest);
      // Without a reload.
      await menu(page, "All Tasks").click();
      await heading(page, "All Tasks");
      const table = inside(page);
      await table.getByRole("row", { name: /hello 10 / }).waitFor();
      await api("POST", "/apis/agentcube.io/v1alpha1/namespaces/default/tasks", { ...JSON.parse(await agentcube("get", "task", "hello", "-o", "json")), metadata: { name: "zeta" }, status: undefined });
      await table.getByRole("row", { name: /zeta 10 / }).waitFor();
      await accessible(await frame(page), "a table of an extension");
      await accessible(page, "the page around an extension");
      await shot(page, "extension-table");
      const names = async () => (await table.locator("tbody tr td:first-child").allTextContents()).filter((name) => ["hello", "zeta"].includes(name)).join();
      ensure((await names()) === "hello,zeta", await names());
      await table.getByRole("button", { name: "Name" }).focus();
      await page.keyboard.press("Enter");
      await page.keyboard.press("Enter");
      await table.locator('th[aria-sort="descending"]').waitFor();
      ensure((await names()) === "zeta,hello", `sorted: ${await names()}`);
      await table.getByRole("searchbox").fill("zet");
      await table.getByRole("row", { name: /hello/ }).waitFor({ state: "detached" });
      await table.getByRole("button", { name: "zeta", exact: true }).click();
      await page.waitForURL(/\/ui\/ext\/default\/all-tasks\/all-tasks\/view\/default\/zeta$/);
      await table.getByLabel("YAML").getByText("kind: Task").waitFor();
      await accessible(await frame(page), "an object in an extension");
      await shot(page, "extension-detail");
      await table.getByRole("button", { name: "Edit" }).click();
      const most = table.getByLabel("Max instances");
      await most.waitFor();
      await accessible(await frame(page), "a form of an extension");
      await shot(page, "extension-form");
      await most.fill("-3");
      await table.getByRole("button", { name: "Save" }).click();
      await table.getByRole("alert").first().waitFor();
      ensure((await most.getAttribute("aria-invalid")) === "true", "the field is marked");
      await shot(page, "extension-form-mistake");
      await most.fill("7");
      await table.getByRole("button", { name: "Save" }).click();
      await page.getByText("Task zeta is saved.").waitFor();
      await page.waitForURL(/\/view\/default\/zeta$/);
      const stored = JSON.parse(await agentcube("get", "task", "zeta", "-o", "json"));
      ensure(stored.spec.scaling.maxInstances === 7, `stored: ${stored.spec.scaling.maxInstances}`);
      await page.goBack();
      await page.goBack();
      await page.goBack();
      await table.getByRole("button", { name: "Delete zeta" }).click();
      await table.getByRole("dialog").waitFor();
      await accessible(await frame(page), "a question in an extension");
      await shot(page, "extension-question");
      await table.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
      // Said for a while only.
      await page.getByText("Task zeta is deleted.").waitFor();
      await table.getByRole("row", { name: /zeta/ }).waitFor({ state: "detached" });
    },
    "an extension makes an object, by YAML what a form cannot show": async () => {
      const { page } = world;
      const manifest = tableOf("All Tasks");
      await put("all-tasks", "All Tasks", await built(manifest), manifest);
      await page.goto(`${CONSOLE}/ui/ext/default/all-tasks/all-tasks/new`);
      const form = inside(page);
      await form.getByLabel("Name").first().fill("made-here");
      await form.getByRole("button", { name: "YAML" }).click();
      const area = form.getByLabel("YAML");
      ensure((await area.inputValue()).includes("name: made-here"), "the form is kept");
      await area.fill("a: [1");
      await form.getByRole("button", { name: "Save" }).click();
      await form.getByRole("alert").getByText("line 1").waitFor();
      const like = JSON.parse(await agentcube("get", "task", "hello", "-o", "json"));
      await area.fill(`apiVersion: agentcube.io/v1alpha1\nkind: Task\nmetadata:\n  name: made-here\n  namespace: default\nspec: ${JSON.stringify(like.spec)}\n`);
      await form.getByRole("button", { name: "Form" }).click();
      await form.getByLabel("Max instances").fill("3");
      await shot(page, "extension-new");
      await form.getByRole("button", { name: "Save" }).click();
      await page.getByText("Task made-here is saved.").waitFor();
      const stored = JSON.parse(await agentcube("get", "task", "made-here", "-o", "json"));
      ensure(stored.spec.scaling.maxInstances === 3, `stored: ${stored.spec.scaling.maxInstances}`);
      await agentcube("delete", "task", "made-here");
      await form.getByText("There is no Task made-here, or it is gone.").waitFor();
    },
    "an extension that is built anew says so, one that is switched off goes": async () => {
      const { page } = world;
      await deployed();
      const first = tableOf("First name");
      await put("changing", "Changing", await built(first), first);
      await page.goto(`${CONSOLE}/ui/ext/default/changing`);
      await heading(page, "First name");
      await inside(page).getByRole("row", { name: /hello/ }).waitFor();
      const second = tableOf("Second name", [...COLUMNS, { key: "kind", title: "Kind of instance", render: { path: "spec.deployment.type" } }]);
      await put("changing", "Changing", await built(second), second);
      await menu(page, "Second name").waitFor();
      await page.getByText("This page was built anew.").waitFor();
      ensure((await inside(page).getByText("Kind of instance").count()) === 0, "what is open stays as it is");
      await shot(page, "extension-changed");
      await page.getByRole("button", { name: "Show the new one" }).click();
      await inside(page).getByRole("columnheader", { name: "Kind of instance" }).waitFor();
      // A bundle of another spec is not shown: as when the spec has changed, and its build still runs.
      await api("PATCH", `${FORGE}/frontendintegrations/changing/status`, { status: { observed_spec_hash: `sha256:${"0".repeat(64)}`, phase: "Building" } }, "application/merge-patch+json");
      await menu(page, "Second name").waitFor({ state: "detached" });
      await page.getByText("A new version of this page is being built.").waitFor();
      await put("changing", "Changing", await built(second), second);
      await menu(page, "Second name").waitFor();
      await api("PATCH", `${FORGE}/frontendintegrations/changing`, { spec: { enabled: false } }, "application/merge-patch+json");
      await menu(page, "Second name").waitFor({ state: "detached" });
      await page.getByText("This extension is switched off.").waitFor();
      ensure((await page.locator("iframe.extension").count()) === 0, "its frame is gone");
      await api("PATCH", `${FORGE}/frontendintegrations/changing`, { spec: { enabled: true } }, "application/merge-patch+json");
      await menu(page, "Second name").waitFor();
      await inside(page).getByRole("row", { name: /hello/ }).waitFor();
      await remove("changing");
      await menu(page, "Second name").waitFor({ state: "detached" });
      await page.getByText("There is no such extension.").waitFor();
    },
    "a broken extension says why, and nothing else breaks": async () => {
      const { page } = world;
      const manifest = tableOf("Broken");
      const good = "export const apiVersion = 1; export default (root) => { root.textContent = 'It works'; };";
      for (const [flaw, module, text, change, says] of [
        ["syntax", "export const apiVersion = 1; export default (", manifest, undefined, /does not load/],
        ["throws", "export const apiVersion = 1; export default () => { throw new Error('no luck today'); };", manifest, undefined, /no luck today/],
        ["loads-badly", "throw new Error('gone wrong at once'); export const apiVersion = 1;", manifest, undefined, /gone wrong at once/],
        ["later", "export const apiVersion = 2; export default () => undefined;", manifest, undefined, /built for a later console.*version 2/],
        ["silent", "export default () => undefined;", manifest, undefined, /does not say for which console/],
        ["digest", good, manifest, (bundle) => { bundle.spec.files[0].content = Buffer.from(`${good} `).toString("base64"); bundle.spec.files[0].size += 1; }, /not what its digest says/],
        ["manifest", good, "{nonsense", undefined, /manifest.json cannot be read/],
        ["routeless", good, { ...manifest, routes: [] }, undefined, /has no routes/],
      ]) {
        await put("broken", "Broken", module, text, change);
        await page.goto(`${CONSOLE}/ui/ext/default/broken`);
        await page.getByRole("alert").getByText(says).waitFor();
        if (flaw === "digest") {
          await page.getByRole("link", { name: "Broken (broken)" }).waitFor();
          await accessible(page, "a broken extension");
          await shot(page, "extension-broken");
        }
        await page.getByRole("link", { name: "Overview" }).click();
        await heading(page, "Overview");
        // The page hears of the next one.
        await remove("broken");
        await menu(page, /^Broken/).waitFor({ state: "detached" });
      }
      complaints.splice(0, complaints.length, ...complaints.filter((text) => !/SyntaxError|Unexpected (end|token)|gone wrong at once|no luck/.test(text)));
      // Something that fails later is told, and stays where it is.
      await put("broken", "Broken", `${good.slice(0, -3)}; setTimeout(() => { throw new Error('later on'); }); };`, manifest);
      await page.goto(`${CONSOLE}/ui/ext/default/broken`);
      await page.getByRole("alert").getByText("later on").waitFor();
      await inside(page).getByText("It works").waitFor();
      complaints.splice(0, complaints.length, ...complaints.filter((text) => !/later on/.test(text)));
      await remove("broken");
    },
    "an extension is heard that speaks before its page was painted": async () => {
      const slow = await newContext();
      await slow.addInitScript(() => {
        if (window !== top) return;
        const [later, PAINT] = [window.setTimeout, 500];
        window.requestAnimationFrame = (call) => later(() => call(performance.now()), PAINT);
        window.setTimeout = (call, after = 0, ...rest) => later(call, after < 50 ? PAINT : after, ...rest);
      });
      const page = await newPage(slow);
      const manifest = tableOf("Quick");
      await put("quick", "Quick", "export const apiVersion = 1; export default (root) => { root.textContent = 'It works'; };", manifest);
      await logIn(page, "/ui/ext/default/quick");
      await inside(page).getByText("It works").waitFor();
      await slow.close();
      await remove("quick");
    },
    "an extension reaches its resource and nothing else": async () => {
      const strict = await newContext();
      const page = await newPage(strict);
      const told = complaints.length;
      const manifest = tableOf("Hostile");
      const module = `export const apiVersion = 1;
        export default async (root, host, page) => {
          const tried = {};
          const attempt = async (name, what) => { try { const got = await what(); tried[name] = "GOT " + JSON.stringify(got ?? null).slice(0, 200); } catch (error) { tried[name] = "refused " + (error.message ?? error); } };
          await attempt("own", async () => (await host.list()).items.map((one) => one.kind ?? "Task")[0]);
          await attempt("pods", () => fetch("/kube/api/v1/pods").then((answer) => answer.status));
          await attempt("absolute", () => fetch(${JSON.stringify(`${CONSOLE}/kube/api/v1/pods`)}).then((answer) => answer.status));
          await attempt("elsewhere", () => fetch("https://example.invalid/"));
          await attempt("storage", () => localStorage.getItem("agentcube-proof"));
          await attempt("cookie", () => document.cookie || Promise.reject(new Error("empty")));
          await attempt("parent", () => parent.document.title);
          await attempt("top", () => { top.location = "https://example.invalid/"; });
          await attempt("escape", () => host.get("../../../secrets/x", "default"));
          await attempt("namespace", () => host.get("x", "default/secrets"));
          await attempt("other", () => host.call("list", { group: "", plural: "pods" }));
          await attempt("secret", () => host.list({ namespace: "default/../../secrets" }));
          await attempt("socket", () => new Promise((resolve, reject) => { const socket = new WebSocket(${JSON.stringify(`${CONSOLE.replace("http", "ws")}/live`)}); socket.onopen = () => resolve("open"); socket.onerror = () => reject(new Error("closed")); }));
          await attempt("image", () => new Promise((resolve, reject) => { const image = new Image(); image.onload = () => resolve("loaded"); image.onerror = () => reject(new Error("blocked")); image.src = ${JSON.stringify(`${CONSOLE}/assets/icon.svg`)}; }));
          await attempt("inline", () => { const script = document.createElement("script"); script.textContent = "window.ran = true"; document.body.append(script); if (!window.ran) throw new Error("blocked"); });
          await attempt("navigate", () => host.navigate("../../../../events"));
          await attempt("popup", () => { if (!window.open("about:blank")) throw new Error("blocked"); });
          root.innerHTML = "<pre></pre>";
          root.firstChild.textContent = JSON.stringify(tried);
          await host.notify("<b>not markup</b>");
        };`;
      await put("hostile", "Hostile", module, manifest);
      await logIn(page, "/ui/ext/default/hostile/all-tasks");
      await page.getByText("<b>not markup</b>").waitFor();
      const text = await inside(page).locator("pre").textContent();
      const tried = JSON.parse(text);
      ensure(tried.own.startsWith("GOT"), `its own resource: ${tried.own}`);
      const reached = Object.entries(tried).filter(([name, outcome]) => name !== "own" && !outcome.startsWith("refused"));
      ensure(reached.length <= (tried.top.startsWith("GOT") ? 1 : 0), `it reached ${JSON.stringify(reached)}`);
      // A location may be set without an error; what counts is that nobody went there.
      await heading(page, "Hostile");
      ensure(page.url().startsWith(`${CONSOLE}/ui/ext/default/hostile/all-tasks`), page.url());
      ensure(page.frames().length === 2, "there is one frame");
      // The frame leads itself elsewhere: the console's own policy holds it back.
      const child = page.frames()[1];
      const blocked = child.waitForURL((url) => url.protocol === "chrome-error:", { waitUntil: "commit" });
      await child.evaluate(() => { location.href = "https://example.invalid/stolen"; }).catch(() => undefined);
      await blocked;
      await remove("hostile");
      await strict.close();
      complaints.splice(told);
    },
    "another site is shown in a frame, with an origin of its own": () => withSite(async (address) => {
      const { page } = world;
      origins.push(address);
      const manifest = { ...tableOf("Dashboards"), pages: [{ id: "main", entryComponent: "Iframe", props: { src: `${address}/boards?org=1` } }] };
      await put("boards", "Dashboards", await built(manifest), manifest);
      await page.goto(`${CONSOLE}/ui/ext/default/boards/all-tasks`);
      // At once: its path is there for a minute only.
      const outer = await fetch(new URL(await page.locator("iframe.extension").getAttribute("src"), CONSOLE));
      const inner = inside(page).frameLocator("iframe");
      await inner.getByRole("heading", { name: "A site of its own" }).waitFor();
      await inner.getByText("yes").waitFor();
      ensure((await page.getByRole("link", { name: "Open in a tab" }).getAttribute("href")) === `${address}/boards?org=1`, "it can be opened by itself");
      await accessible(page, "a site in a frame");
      await shot(page, "extension-site");
      ensure(outer.headers.get("content-security-policy").includes(`frame-src ${address}/boards;`), outer.headers.get("content-security-policy"));
      await remove("boards");
    }),
    "extensions in the dark": async () => {
      const dark = await newContext({ bypassCSP: true, colorScheme: "dark" });
      const page = await newPage(dark);
      await deployed();
      const manifest = tableOf("All Tasks");
      await put("all-tasks", "All Tasks", await built(manifest), manifest);
      await logIn(page, "/ui/ext/default/all-tasks/all-tasks");
      await inside(page).getByRole("row", { name: /hello/ }).waitFor();
      await accessible(await frame(page), "a table of an extension in the dark");
      await shot(page, "dark-extension");
      await inside(page).getByRole("button", { name: "Edit hello" }).click();
      await inside(page).getByLabel("Max instances").waitFor();
      await accessible(await frame(page), "a form of an extension in the dark");
      await shot(page, "dark-extension-form");
      await dark.close();
      await remove("all-tasks");
    },
    "a front end: its builds, their log, a new build, its page": async () => {
      const { page } = world;
      await page.goto(`${CONSOLE}/ui/frontends`);
      await page.getByRole("link", { name: "New front end" }).click();
      await page.getByRole("button", { name: "Check" }).click();
      await page.getByText("Valid.").waitFor();
      const manifest = tableOf("Built page");
      await put("builds", "Built page", await built(manifest), manifest);
      const labels = { "frontend-forge.io/fi-name": "builds", "frontend-forge.io/spec-hash": "a".repeat(63) };
      const pod = { restartPolicy: "Never", containers: [{ name: "runner", image: "host", command: ["sh", "-c", "echo building the bundle"] }] };
      await api("POST", "/apis/batch/v1/namespaces/default/jobs", { apiVersion: "batch/v1", kind: "Job", metadata: { name: "fi-builds-1", labels }, spec: { backoffLimit: 0, template: { metadata: { labels }, spec: pod } } });
      await page.goto(`${CONSOLE}/ui/frontends/default/builds`);
      await heading(page, "builds");
      await page.getByRole("link", { name: "Open Built page" }).waitFor();
      await accessible(page, "a front end");
      await shot(page, "frontend");
      await page.getByRole("button", { name: "Build anew" }).click();
      await page.getByText("Asked to build it anew.").waitFor();
      const stored = JSON.parse(await agentcube("get", "frontendintegration", "builds", "-o", "json"));
      ensure(!Number.isNaN(Date.parse(stored.metadata.annotations["frontend-forge.io/rebuild"])), "the annotation asks for it");
      await page.getByRole("link", { name: "Builds", exact: true }).click();
      await page.getByRole("row", { name: /fi-builds-1 Succeeded/ }).waitFor();
      await page.getByRole("log").getByText("building the bundle").waitFor();
      await accessible(page, "builds of a front end");
      await shot(page, "frontend-builds");
      await page.getByRole("link", { name: "Overview" }).last().click();
      await page.getByRole("link", { name: "Open Built page" }).click();
      await heading(page, "Built page");
      await page.goto(`${CONSOLE}/ui/frontends`);
      await page.getByRole("row", { name: /fi-builds default Shown builds/ }).waitFor();
      await page.getByRole("row", { name: /^builds default Succeeded .* Open/ }).waitFor();
      await accessible(page, "front ends");
      await shot(page, "frontends-shown");
      await api("DELETE", "/apis/batch/v1/namespaces/default/jobs/fi-builds-1?propagationPolicy=Background");
      await remove("builds");
    },
  };
}
