// The console in a real Chromium, on a running `agentcube up`. Prints a line of JSON for each trial; `cargo xtask test
// console` starts it and counts them. Everything that it needs is named by the environment, see `required` below.
//
// Trials run one after the other in one browser, and each finds what it needs by itself, so that any can be run alone.

import { execFile, spawn } from "node:child_process";
import { mkdir, readFile } from "node:fs/promises";
import { request } from "node:https";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { extensions } from "./extensions.mjs";
import { forge } from "./forge.mjs";
import { installed } from "./installed.mjs";
import { terminals } from "./terminals.mjs";

const required = ["CONSOLE", "KUBECONFIG", "AGENTCUBE", "CHROMIUM", "MODULES", "ARTIFACTS", "TRIALS"];
for (const name of required) if (!process.env[name]) throw new Error(`${name} is not set`);
const { CONSOLE, KUBECONFIG, AGENTCUBE, CHROMIUM, MODULES, ARTIFACTS } = process.env;
const require = createRequire(join(MODULES, "node_modules/"));
const { chromium } = require("playwright-core");
const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

const TRIALS = dirname(fileURLToPath(import.meta.url));
/** For whoever changes pages: taken from this directory, instead of from the program. */
const { ASSETS } = process.env;

/** Generous: CI is a loaded machine, and a debug build is slow. */
const LIMIT = 60_000;
/** A trial that takes longer hangs, and nothing after it can be trusted. */
const TRIAL_LIMIT = 15 * LIMIT;
const run = promisify(execFile);
const agentcube = async (...args) => (await run(AGENTCUBE, args, { env: { ...process.env, KUBECONFIG }, timeout: 2 * LIMIT, maxBuffer: 64 << 20 })).stdout;
const kubeconfig = await readFile(KUBECONFIG, "utf8");
const [token, server, authority] = ["token", "server", "certificate-authority-data"].map((name) => new RegExp(`^[\\s-]*${name}:\\s*(\\S+)\\s*$`, "m").exec(kubeconfig)[1].replace(/^"|"$/g, ""));

/** Asks the API server itself, for what the program has no command for. What is already there, or gone, is well. */
const api = (method, path, body, type = "application/json") => new Promise((resolve, reject) => {
  const options = { method, ca: Buffer.from(authority, "base64"), headers: { authorization: `Bearer ${token}`, "content-type": type } };
  const asked = request(new URL(path, server), options, async (answer) => {
    let text = "";
    for await (const piece of answer) text += piece;
    const well = answer.statusCode < 300 || (method === "DELETE" && answer.statusCode === 404) || (method === "POST" && answer.statusCode === 409);
    if (well) resolve(JSON.parse(text));
    else reject(new Error(`${method} ${path}: ${text}`));
  });
  asked.on("error", reject);
  asked.end(body === undefined ? undefined : JSON.stringify(body));
});

await mkdir(ARTIFACTS, { recursive: true });
const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

const ensure = (holds, what) => {
  if (!holds) throw new Error(what);
};

/** Asks again until there is something. */
async function until(what, look, limit = LIMIT) {
  for (const deadline = Date.now() + limit; Date.now() < deadline; await new Promise((resolve) => { setTimeout(resolve, 100); })) {
    const found = await look();
    if (found) return found;
  }
  throw new Error(`waited in vain: ${what}`);
}

/** Processes that a trial has started; none outlives it. */
const children = new Set();
const started = (...args) => {
  const child = spawn(...args);
  children.add(child);
  child.once("exit", () => children.delete(child));
  return child;
};
const endAll = () => children.forEach((child) => child.kill("SIGKILL"));
process.once("exit", endAll);

/** Where requests of any page went that were not to the console, and what any page complained about. */
const origins = [CONSOLE];
const elsewhere = [];
const complaints = [];
/** Answers 503 and 504 that say when to come again: on a loaded machine these are no mistakes of a page. */
const busy = [];

async function noteBusy(response) {
  if (![503, 504].includes(response.status())) return;
  const said = await response.json().catch(() => ({}));
  if (said.details?.retryAfterSeconds > 0) busy.push(response.url());
}

async function newContext(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  context.setDefaultTimeout(LIMIT);
  context.on("request", (request) => {
    if (!origins.some((origin) => request.url().startsWith(`${origin}/`))) elsewhere.push(request.url());
  });
  if (ASSETS) await context.route("**/assets/*", (route) => route.fulfill({ path: join(ASSETS, new URL(route.request().url()).pathname.split("/").pop()) }));
  context.on("weberror", (error) => complaints.push(String(error.error())));
  return context;
}

async function newPage(context) {
  const page = await context.newPage();
  page.on("console", (message) => {
    // A refusal that a trial asks for is also told here.
    if (message.type() === "error" && !/status of (4\d\d|502)|ERR_CONNECTION_REFUSED|WebSocket connection to/.test(message.text())) {
      complaints.push(/status of 50[34]/.test(message.text()) ? `${message.text()} ${message.location().url}` : message.text());
    }
  });
  page.on("response", noteBusy);
  page.on("websocket", (socket) => {
    if (!origins.some((origin) => socket.url().startsWith(`${origin.replace("http", "ws")}/`))) elsewhere.push(socket.url());
  });
  return page;
}

async function logIn(page, path = "/", origin = CONSOLE) {
  await page.goto(`${origin}${path}`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
}

const heading = (page, name) => page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
const shot = (page, name) => page.screenshot({ path: join(ARTIFACTS, `${name}.png`), fullPage: true });

/** Everything that axe calls serious or worse. */
async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] }));
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const told = bad.map((one) => `${one.id}: ${one.help} (${one.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("; ").slice(0, 400)})`);
  ensure(bad.length === 0, `${where}: ${told.join(" | ")}`);
}

const objects = join(TRIALS, "objects.yaml");
const hello = join(TRIALS, "hello.yaml");
const deployed = () => agentcube("apply", "-f", hello, "--force-conflicts", "--wait", "--timeout", "100");
/** A router may hear of a Task a little after its status says so: until then it answers 404. */
const invoke = (session, body) => until(`hello answers ${session}`, () => agentcube("invoke", "hello", "--session", session, "-d", body).then(() => true, (error) => {
  if (!String(error.stderr).includes("answered 404")) throw error;
  return false;
}));

// The context in which most trials are logged in. What axe injects is not allowed by the policy of our pages, which a
// trial of its own looks at.
const context = await newContext({ bypassCSP: true });
let page;
const world = {
  AGENTCUBE, KUBECONFIG, authority, CONSOLE, MODULES, require, api, agentcube, ensure, heading, shot, accessible, newContext, newPage, logIn, deployed, invoke, until, started, complaints, origins,
  get page() { return page; },
};
/** The last trial of each set. */
const quiet = async () => {
  ensure(elsewhere.length === 0, `elsewhere: ${[...new Set(elsewhere)].join(", ")}`);
  const left = complaints.filter((text) => !busy.some((url) => /status of 50[34]/.test(text) && text.endsWith(` ${url}`)));
  ensure(left.length === 0, `complaints: ${[...new Set(left)].join(" | ")}`);
};
const pages = {
  "a wrong token is refused, and says so": async () => {
    const stranger = await newContext({ bypassCSP: true });
    const page = await newPage(stranger);
    await page.goto(CONSOLE);
    await page.getByLabel("Token").waitFor();
    await accessible(page, "login");
    await shot(page, "login");
    await page.getByLabel("Token").fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("alert").getByText("does not know this token").waitFor();
    await accessible(page, "login refused");
    await shot(page, "login-refused");
    ensure((await stranger.cookies()).length === 0, "no cookie is set");
    const refused = await page.request.get(`${CONSOLE}/kube/api/v1/pods`);
    ensure(refused.status() === 401, `without a session: ${refused.status()}`);
    await stranger.close();
  },
  "a kubeconfig logs in": async () => {
    const stranger = await newContext();
    const page = await newPage(stranger);
    await page.goto(CONSOLE);
    await page.getByLabel("or choose a kubeconfig").setInputFiles(KUBECONFIG);
    await heading(page, "Overview");
    const [cookie] = await stranger.cookies();
    ensure(cookie.httpOnly && cookie.sameSite === "Strict", `the cookie is guarded: ${JSON.stringify(cookie)}`);
    ensure(!(await page.evaluate(() => JSON.stringify({ ...localStorage }))).includes(token), "no script can read the token");
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    ensure((await stranger.cookies()).length === 0, "the cookie is gone");
    await stranger.close();
  },
  "a cookie is of no use without its proof, nor from elsewhere": async () => {
    const cookies = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join("; ");
    const proof = await page.evaluate(() => localStorage.getItem("agentcube-proof"));
    const ask = async (headers) => (await fetch(`${CONSOLE}/kube/api/v1/pods`, { headers })).status;
    ensure((await ask({ cookie: cookies, "x-agentcube-proof": proof })) === 200, "both open");
    ensure((await ask({ cookie: cookies })) === 401, "the cookie alone does not");
    ensure((await ask({ "x-agentcube-proof": proof })) === 401, "the proof alone does not");
    ensure((await ask({ cookie: cookies, "x-agentcube-proof": proof, origin: "http://127.0.0.1:1" })) === 403, "another port is another origin");
    ensure((await ask({ cookie: cookies, "x-agentcube-proof": proof, "sec-fetch-site": "cross-site" })) === 403, "other sites are refused");
    const proxied = await fetch(`${CONSOLE}/kube/api/v1/secrets`, { headers: { cookie: cookies, "x-agentcube-proof": proof } });
    ensure(proxied.status === 403, "secrets do not go through");
    const first = await fetch(CONSOLE);
    const policy = first.headers.get("content-security-policy");
    for (const words of ["default-src 'none'", "script-src 'self'", "frame-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]) {
      ensure(policy.includes(words), `${words} in ${policy}`);
    }
    ensure(first.headers.get("x-frame-options") === "DENY", "no frames");
  },
  "the first page is light, quick, and within its own policy": async () => {
    const strict = await newContext();
    const page = await newPage(strict);
    let bytes = 0;
    const requests = [];
    page.on("request", (request) => requests.push(`${request.method()} ${new URL(request.url()).pathname}`));
    page.on("response", async (response) => {
      bytes += (await response.request().sizes().catch(() => ({ responseBodySize: 0 }))).responseBodySize;
    });
    await logIn(page);
    await heading(page, "Overview");
    await page.getByText("Live", { exact: true }).waitFor();
    await page.waitForLoadState("load");
    ensure(bytes > 0 && bytes < 300 * 1024, `${bytes} bytes`);
    // A page, its script, style and icon; then the login, and a list of each kind that is shown. Time is not measured: it is the
    // machine's, and these are what it takes.
    ensure(requests.indexOf("POST /session") <= 4 && requests.length <= 20, `${requests.length} requests: ${requests.join(", ")}`);
    await page.evaluate(() => { const s = document.createElement("script"); try { s.textContent = "window.broken = true"; document.head.append(s); } catch { /* as it should be */ } });
    ensure(!(await page.evaluate(() => "broken" in window)), "no inline script runs");
    complaints.splice(0, complaints.length, ...complaints.filter((text) => !/Content Security Policy|TrustedScript|trusted type/i.test(text)));
    await strict.close();
  },
  "the overview shows a session as it begins": async () => {
    await deployed();
    await page.goto(`${CONSOLE}/ui/`);
    await heading(page, "Overview");
    await page.getByRole("link", { name: /^Tasks 1/ }).waitFor();
    await invoke("overview", "I am here");
    const row = page.getByRole("row", { name: /overview .*bound/ });
    await row.waitFor();
    await accessible(page, "overview");
    await shot(page, "overview");
  },
  "what is wrong is told, and why": async () => {
    await agentcube("apply", "-f", join(TRIALS, "broken.yaml"));
    await page.goto(`${CONSOLE}/ui/`);
    const problem = page.getByRole("listitem").filter({ hasText: "Task default/broken" });
    await problem.first().waitFor();
    await accessible(page, "overview with a problem");
    await shot(page, "overview-problem");
    await problem.first().getByRole("link").click();
    await heading(page, "broken");
    await agentcube("delete", "task", "broken");
    await page.getByText("There is no Task of this name, or it is gone.").waitFor();
  },
  "a Task: instances, sessions, logs, all of them live": async () => {
    await deployed();
    await page.goto(`${CONSOLE}/ui/tasks`);
    await page.getByRole("link", { name: "hello" }).waitFor();
    await accessible(page, "tasks");
    await shot(page, "tasks");
    await page.getByRole("link", { name: "hello" }).click();
    await heading(page, "hello");
    await page.getByText("Serving", { exact: true }).waitFor();
    await accessible(page, "task");
    await shot(page, "task");
    await page.getByRole("link", { name: /^Sessions/ }).last().click();
    await invoke("watched", "Hello");
    await page.getByRole("row", { name: /watched bound/ }).waitFor();
    await accessible(page, "sessions of a task");
    await shot(page, "task-sessions");
    await page.getByRole("link", { name: /^Instances/ }).last().click();
    await page.getByRole("row", { name: /Running watched/ }).waitFor();
    await accessible(page, "instances of a task");
    await shot(page, "task-instances");
    const instance = page.getByRole("row", { name: /Running watched/ }).getByRole("link");
    const name = await instance.textContent();
    await instance.click();
    await heading(page, name);
    await page.getByText("How it started").waitFor();
    await page.getByRole("meter", { name: "Ready" }).waitFor();
    await accessible(page, "an instance");
    await shot(page, "pod");
    await page.goto(`${CONSOLE}/ui/tasks/default/hello/logs`);
    await page.getByRole("log").getByText("listening on").waitFor();
    await accessible(page, "logs of a task");
    await shot(page, "task-logs");
  },
  "a session is ended by hand": async () => {
    await deployed();
    await invoke("ended", "Hello");
    await page.goto(`${CONSOLE}/ui/tasks/default/hello/sessions`);
    await page.getByRole("button", { name: "End session ended" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    await accessible(page, "a question");
    await shot(page, "question");
    await dialog.getByRole("button", { name: "End session" }).click();
    await page.getByRole("row", { name: /ended / }).waitFor({ state: "detached" });
  },
  "a Task is invoked, and remembers": async () => {
    await deployed();
    await page.goto(`${CONSOLE}/ui/tasks/default/hello/invoke`);
    await page.getByLabel("Session").fill("form");
    await page.getByLabel("Body", { exact: true }).fill("I am the form");
    // As with `invoke`: a router may hear of it a little later.
    await until("the form is answered", async () => {
      await page.getByRole("button", { name: "Send" }).click();
      const answered = page.getByText(/^(200 OK|404 Not Found)$/).first();
      await answered.waitFor();
      return (await answered.textContent()) === "200 OK";
    });
    await page.getByLabel("Body of the answer").getByText("I am the form").waitFor();
    await accessible(page, "invoke");
    await shot(page, "task-invoke");
    await page.getByLabel("Path").fill("no/slash");
    await page.getByLabel("Headers").fill("not a header");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByRole("alert").getByText("is not a header").waitFor();
  },
  "events come as they happen": async () => {
    await deployed();
    await page.goto(`${CONSOLE}/ui/events`);
    await heading(page, "Events");
    await page.getByRole("region", { name: "Events" }).waitFor();
    await page.getByRole("row", { name: /Task default\/hello/ }).first().waitFor();
    await accessible(page, "events");
    await shot(page, "events");
  },
  "YAML is edited, judged at its lines, and saved": async () => {
    await deployed();
    await page.goto(`${CONSOLE}/ui/tasks/default/hello/yaml`);
    const area = page.getByLabel("YAML", { exact: true });
    await area.waitFor();
    await page.getByRole("button", { name: "Edit" }).click();
    const text = await area.inputValue();
    // Its status changes meanwhile, which is nothing to an edit.
    await invoke("edits", "Hello");
    ensure(text.includes("maxInstances: 10"), "it shows the object");
    ensure(!text.includes("managedFields"), "without noise");
    await area.fill(text.replace("maxInstances: 10", "maxInstances: none"));
    const mistakes = page.locator("#mistakes li");
    await mistakes.filter({ hasText: "spec.scaling.maxInstances" }).waitFor();
    const line = text.split("\n").findIndex((one) => one.includes("maxInstances")) + 1;
    await mistakes.getByRole("button", { name: `line ${line}` }).first().click();
    ensure((await page.locator(".gutter .mark").first().textContent()) === String(line), "the line is marked");
    ensure(await page.getByRole("button", { name: "Save" }).isDisabled(), "what is wrong is not saved");
    await accessible(page, "yaml with a mistake");
    await shot(page, "yaml-mistake");
    await area.fill(text.replace("maxInstances: 10", "maxInstances: [10"));
    // Only YAML that cannot be read has no field.
    await mistakes.filter({ hasText: "spec.scaling.maxInstances" }).waitFor({ state: "detached" });
    await mistakes.filter({ hasText: /line/ }).first().waitFor();
    await area.fill(text.replace("maxInstances: 10", "maxInstances: 9"));
    await page.getByText("Valid.").waitFor();
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Saved.").waitFor();
    const stored = JSON.parse(await agentcube("get", "task", "hello", "-o", "json"));
    ensure(stored.spec.scaling.maxInstances === 9, `stored: ${stored.spec.scaling.maxInstances}`);
    await deployed();
    await page.waitForFunction(() => document.querySelector("textarea")?.value.includes("maxInstances: 10"));
  },
  "a Task is made from YAML": async () => {
    await page.goto(`${CONSOLE}/ui/tasks`);
    await page.getByRole("link", { name: "New Task" }).click();
    await heading(page, "New object");
    const area = page.getByLabel("YAML", { exact: true });
    const text = await area.inputValue();
    await area.fill(text.replace("scalingMode: OnDemand", "scalingMode: Sometimes\n    nonsense: 1"));
    await page.getByRole("button", { name: "Create" }).click();
    await page.locator("#mistakes li").filter({ hasText: "nonsense" }).waitFor();
    await accessible(page, "new");
    await shot(page, "new");
    await area.fill(text);
    await page.getByRole("button", { name: "Check" }).click();
    await page.getByText("Valid.").waitFor();
    await page.getByRole("button", { name: "Create" }).click();
    await heading(page, "my-agent");
    await page.getByText("Serving", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await heading(page, "Tasks");
    await page.getByRole("link", { name: "my-agent" }).waitFor({ state: "detached" });
  },
  "gateways, sandboxes, apps, frontends and pods have their pages": async () => {
    await deployed();
    await agentcube("apply", "-f", objects);
    for (const [path, name, sees] of [
      ["gateways", "Gateways", "default"], ["gateways/default/default", "default", "Tasks behind it"],
      ["sandboxes", "Sandboxes", "console-pool"], ["pools/default/console-pool", "console-pool", "Its sandboxes"],
      ["apps", "Apps", "console-app"], ["apps/default/console-app", "console-app", "Parts"], ["apps/default/console-app/changes", "console-app", "Changes"],
      ["frontends", "Frontends", "console-frontend"], ["frontends/default/console-frontend", "console-frontend", "Conditions"],
      ["pods", "Pods", "Pods"], ["sessions", "Sessions", "Sessions"],
    ]) {
      await page.goto(`${CONSOLE}/ui/${path}`);
      await heading(page, name);
      await page.getByRole("main").getByText(sees).first().waitFor();
      await accessible(page, path);
      await shot(page, path.replaceAll("/", "-"));
    }
    await agentcube("delete", "-f", objects);
  },
  "a change of an App is cancelled, and retried": async () => {
    await agentcube("apply", "-f", objects);
    await page.goto(`${CONSOLE}/ui/apps/default/console-app/changes`);
    await page.getByText("in progress").waitFor();
    await accessible(page, "changes of an App");
    await shot(page, "app-changes");
    await page.getByRole("button", { name: /^Cancel / }).click();
    await page.getByText(/^Asked to cancel/).waitFor();
    await page.getByRole("main").getByText("cancelled", { exact: true }).waitFor();
    await page.getByRole("button", { name: /^Retry / }).click();
    await page.getByText(/^Asked to retry/).waitFor();
    await page.getByText("in progress").waitFor();
    await page.goto(`${CONSOLE}/ui/apps/default/console-app`);
    await page.getByRole("main").getByText(/^Group$/).waitFor();
    await accessible(page, "parts of an App");
    await shot(page, "app-parts");
    await agentcube("delete", "-f", objects);
  },
  "a console beside a cluster, which goes away and comes back": async () => {
    const start = async (listen) => {
      const child = started(AGENTCUBE, ["console", "--listen", listen, "--kubeconfig", KUBECONFIG], { stdio: ["ignore", "pipe", "inherit"] });
      let told = "";
      for await (const piece of child.stdout) {
        told += piece;
        const found = /console at (http:\S+) of/.exec(told);
        if (found) return { child, origin: found[1] };
      }
      throw new Error(`it never says where it is: ${told}`);
    };
    const end = async (child) => {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGTERM");
      await ended;
    };
    const { child, origin } = await start("127.0.0.1:0");
    origins.push(origin);
    const beside = await newContext();
    const page = await newPage(beside);
    await logIn(page, "/ui/gateways", origin);
    await page.getByRole("link", { name: "default" }).waitFor();
    await page.getByText("Live", { exact: true }).waitFor();
    await end(child);
    await page.getByText("Disconnected", { exact: true }).waitFor();
    const again = await start(new URL(origin).host);
    await page.getByText("The session has ended. Log in again.").waitFor();
    await end(again.child);
    await beside.close();
  },
  "by keyboard alone": async () => {
    await page.goto(`${CONSOLE}/ui/`);
    await heading(page, "Overview");
    await page.keyboard.press("Tab");
    ensure((await page.evaluate(() => document.activeElement?.textContent)) === "Skip to content", "the first stop skips the menu");
    for (let presses = 0; presses < 12; presses += 1) {
      if ((await page.evaluate(() => document.activeElement?.textContent)) === "Tasks") break;
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    await heading(page, "Tasks");
    // The new page is read out.
    await page.waitForFunction(() => document.activeElement?.tagName === "H1");
  },
  "dark, and on a telephone": async () => {
    await deployed();
    const dark = await newContext({ bypassCSP: true, colorScheme: "dark" });
    const night = await newPage(dark);
    await logIn(night, "/ui/tasks/default/hello");
    await heading(night, "hello");
    await accessible(night, "dark");
    await shot(night, "dark-task");
    await night.goto(`${CONSOLE}/ui/`);
    await heading(night, "Overview");
    await accessible(night, "dark overview");
    await shot(night, "dark-overview");
    await dark.close();
    const small = await newContext({ bypassCSP: true, viewport: { width: 390, height: 844 } });
    const phone = await newPage(small);
    await logIn(phone);
    await heading(phone, "Overview");
    await phone.getByRole("button", { name: "Menu" }).click();
    await shot(phone, "telephone-menu");
    await phone.getByRole("link", { name: "Tasks", exact: true }).click();
    await heading(phone, "Tasks");
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    ensure(wide <= 0, `the page is ${wide} pixels wider than the screen`);
    await accessible(phone, "telephone");
    await shot(phone, "telephone-tasks");
    await small.close();
  },
  ...extensions(world),
  ...terminals(world),
  ...installed(world),
  "no request leaves the machine, and no page complains": quiet,
};
/** By the set that is asked for: the forge would change what the other trials put in by hand. */
const trials = { pages, forge: { ...forge(world), "no page of the forge reaches elsewhere, or complains": quiet } }[process.env.TRIALS];

const only = process.argv[2] ?? "";
try {
  page = await newPage(context);
  await logIn(page);
  for (const [name, trial] of Object.entries(trials)) {
    if (!name.includes(only)) continue;
    let why = null;
    const limit = setTimeout(() => {
      console.log(JSON.stringify({ name, why: `it hangs: not done after ${TRIAL_LIMIT / 1000} s` }));
      process.exit(1);
    }, TRIAL_LIMIT);
    try {
      await trial();
    } catch (error) {
      why = String(error?.stack ?? error).split("\n").slice(0, 12).join("\n    ");
      await page.screenshot({ path: join(ARTIFACTS, `failed-${name.replaceAll(/\W+/g, "-")}.png`), fullPage: true }).catch(() => undefined);
    } finally {
      clearTimeout(limit);
      endAll();
    }
    console.log(JSON.stringify({ name, why }));
  }
} finally {
  await browser.close();
}
// Whatever a trial has left open would keep it running.
process.exit();
