// Trials of terminals, logs of sandboxes, and figures of Tasks.

const POOL = { apiVersion: "sandbox.fast.io/v1alpha1", kind: "SandboxPool", metadata: { name: "terminals" }, spec: { capacity: { poolMin: 1, poolMax: 1 }, maxSandboxesPerPod: 4 } };
const SANDBOX = {
  apiVersion: "sandbox.fast.io/v1alpha1", kind: "Sandbox", metadata: { name: "box" },
  spec: { poolRef: "terminals", image: "host", command: ["sh", "-c", "n=0; while :; do n=$((n+1)); echo line $n; sleep 1; done"] },
};

export function terminals(world) {
  const { CONSOLE, api, agentcube, ensure, heading, shot, accessible, deployed, invoke, until } = world;

  /** Types a line, and waits until the screen has something. */
  const type = async (page, line, expected) => {
    await page.locator(".terminal textarea").focus();
    await page.keyboard.type(`${line}\n`);
    await page.locator(".xterm-rows").getByText(expected).first().waitFor();
  };
  const converse = async (page, where) => {
    await page.getByRole("status").getByText("Connected").waitFor();
    await type(page, "echo $((6*7))-is-it", "42-is-it");
    // A terminal has a size, which follows the window's.
    await type(page, "stty size | sed 's/^/size /'", /^size \d+ \d+$/);
    const sizes = async () => (await page.locator(".xterm-rows > div").allTextContents()).filter((row) => /^size \d/.test(row)).map((row) => row.trim());
    const before = (await sizes()).at(-1);
    await page.setViewportSize({ width: 1000, height: 700 });
    await page.waitForFunction((rows) => document.querySelectorAll(".xterm-rows > div").length !== rows, Number(before.split(" ")[1]));
    // The shell hears of it a little later than the page.
    let asked = 0;
    await until(`another size than ${before}`, async () => {
      asked += 1;
      await type(page, `stty size | sed 's/^/size /'; echo asked $((${asked}))`, new RegExp(`^asked ${asked}$`));
      return (await sizes()).some((size) => size !== before);
    });
    // Colours, and a line that is edited before it is sent.
    await type(page, "printf '\\033[31mred\\033[0m \\033[38;2;10;200;10mtrue\\033[0m\\n'", /^red true$/);
    await page.keyboard.type("echo wrnog");
    for (let n = 0; n < 4; n += 1) await page.keyboard.press("Backspace");
    await page.keyboard.type("right\n");
    await page.locator(".xterm-rows > div").getByText(/^wright$/).waitFor();
    // A program that takes the whole screen gives it back as it was.
    await type(page, "printf '\\033[?1049h\\033[2J\\033[5;10Hwhole\\055screen'; read x; printf '\\033[?1049l'", "whole-screen");
    const rows = await page.locator(".xterm-rows > div").allTextContents();
    ensure(rows[4].indexOf("whole-screen") === 9 && !rows.some((row) => row.includes("wright")), `drawn where it was told to: ${rows.slice(0, 6).join("|")}`);
    await page.keyboard.press("Enter");
    await page.locator(".xterm-rows > div").getByText(/^wright$/).waitFor();
    await accessible(page, where);
    await shot(page, where.replaceAll(" ", "-"));
    await page.keyboard.type("exit 3\n");
    await page.getByRole("status").getByText("the shell has ended with 3").waitFor();
    await page.getByRole("button", { name: "Open again" }).click();
    await page.getByRole("status").getByText("Connected").waitFor();
    await page.setViewportSize({ width: 1360, height: 900 });
  };

  return {
    "a terminal in a Pod": async () => {
      const { page } = world;
      await deployed();
      await invoke("terminal", "Hello");
      const pods = JSON.parse(await agentcube("get", "pods", "-o", "json")).items;
      const pod = pods.find((one) => one.metadata.annotations?.["agentcube.io/reserve-key"] === "terminal");
      await page.goto(`${CONSOLE}/ui/pods/default/${pod.metadata.name}/terminal`);
      await converse(page, "terminal in a pod");
      await page.goto(`${CONSOLE}/ui/pods/default/nothing/terminal`);
      await page.getByText("There is no Pod of this name").waitFor();
    },
    "a sandbox: its log and a terminal": async () => {
      const { page } = world;
      await api("POST", "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxpools", POOL);
      await api("POST", "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxes", SANDBOX);
      await page.goto(`${CONSOLE}/ui/sandboxes/default/box`);
      await heading(page, "box");
      await page.getByText("Running", { exact: true }).first().waitFor();
      await accessible(page, "a sandbox");
      await shot(page, "sandbox");
      await page.getByRole("link", { name: "Logs" }).click();
      await page.getByRole("log").getByText("line 1").first().waitFor();
      // It is followed.
      const lines = async () => (await page.getByRole("log").textContent()).split("\n").length;
      const first = await lines();
      await page.waitForFunction((count) => document.querySelector("[role=log]").textContent.split("\n").length > count, first);
      await accessible(page, "log of a sandbox");
      await shot(page, "sandbox-log");
      await page.getByRole("link", { name: "Terminal" }).click();
      await converse(page, "terminal in a sandbox");
      await api("DELETE", "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxes/box");
      await page.getByText("There is no Sandbox of this name, or it is gone.").waitFor();
      await api("DELETE", "/apis/sandbox.fast.io/v1alpha1/namespaces/default/sandboxpools/terminals");
    },
    "a terminal needs the proof": async () => {
      const { page } = world;
      await page.goto(`${CONSOLE}/ui/`);
      const outcome = await page.evaluate(() => new Promise((resolve) => {
        const heard = [];
        const socket = new WebSocket(`ws://${location.host}/terminal`);
        socket.onopen = () => { socket.send("no proof"); socket.send(JSON.stringify({ kind: "pod", namespace: "default", name: "x", columns: 80, rows: 24 })); };
        socket.onmessage = (event) => heard.push(event.data);
        socket.onclose = () => resolve(heard);
      }));
      ensure(outcome.length === 0, `it was told ${outcome}`);
    },
    "figures of a Task: ways to an instance, times, how instances started": async () => {
      const { page } = world;
      await deployed();
      await page.goto(`${CONSOLE}/ui/tasks/default/hello/figures`);
      await page.getByText("Ways to an instance").first().waitFor();
      const number = async (way) => Number(await page.getByRole("row", { name: new RegExp(`^${way}`) }).locator("td").nth(2).textContent());
      const [reused, cold] = [await number("Reused"), await number("Cold")];
      await invoke(`figures-${Date.now()}`, "Hello");
      await invoke("figures", "Hello");
      await invoke("figures", "again");
      await page.waitForFunction(([way, before]) => [...document.querySelectorAll("tbody tr")].some((row) => row.textContent.startsWith(way) && Number(row.children[2].textContent) > before), ["Reused", reused]);
      ensure((await number("Cold")) + (await number("Idle")) > cold, "new sessions are counted");
      await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].some((row) => row.textContent.startsWith("Reused") && /(µs|ms)/.test(row.textContent)));
      await page.getByRole("img", { name: /^Sessions and requests: Sessions [1-9]/ }).waitFor();
      await page.getByRole("img", { name: /hello.*Ready after/ }).first().waitFor();
      await page.getByRole("img", { name: /^Time to an instance: .*Reused/ }).waitFor();
      await accessible(page, "figures");
      await shot(page, "task-figures");
    },
  };
}
