// The console as `agentcube install` puts it on a cluster: a Deployment whose Pod has no token, behind a port-forward.

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const KINDS = ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"];

export function installed(world) {
  const { AGENTCUBE, KUBECONFIG, authority, api, agentcube, ensure, heading, shot, newContext, newPage, logIn, origins, deployed, started } = world;
  return {
    "the console of a cluster, as it is installed": async () => {
      await deployed();
      // Here Pods reach the API server only where a label says so.
      await api("POST", "/api/v1/namespaces", { metadata: { name: "agentcube-system" } });
      await api("PATCH", "/api/v1/namespaces/agentcube-system", { metadata: { labels: { "agentcube.io/api-access": "true" } } }, "application/merge-patch+json");
      // Kubernetes makes it in every namespace.
      await api("POST", "/api/v1/namespaces/agentcube-system/configmaps", { metadata: { name: "kube-root-ca.crt" }, data: { "ca.crt": Buffer.from(authority, "base64").toString() } });
      const { items } = JSON.parse(await agentcube("install", "--image", "host", "-o", "json"));
      const ours = items.filter((one) => one.metadata.name === "agentcube-console");
      ensure(ours.map((one) => one.kind).sort().join() === KINDS.join(), `installed: ${ours.map((one) => one.kind)}`);
      // The program is elsewhere in the image of the host.
      ours.find((one) => one.kind === "Deployment").spec.template.spec.containers[0].command[0] = "/.agentcube/agentcube";
      const directory = await mkdtemp(join(tmpdir(), "console-installed-"));
      const file = join(directory, "console.json");
      await writeFile(file, JSON.stringify({ apiVersion: "v1", kind: "List", items: ours }));
      await agentcube("apply", "-f", file, "--wait", "--timeout", "100");
      const child = started(AGENTCUBE, ["port-forward", "-n", "agentcube-system", "deploy/agentcube-console", ":8091"], { env: { ...process.env, KUBECONFIG }, stdio: ["ignore", "pipe", "inherit"] });
      try {
        let told = "";
        for await (const piece of child.stdout) {
          told += piece;
          if (/127\.0\.0\.1:\d+/.test(told)) break;
        }
        const origin = `http://${/127\.0\.0\.1:\d+/.exec(told)[0]}`;
        origins.push(origin);
        const beside = await newContext();
        const page = await newPage(beside);
        await logIn(page, "/ui/tasks", origin);
        await heading(page, "Tasks");
        await page.getByRole("link", { name: "hello" }).waitFor();
        await page.getByText("Live", { exact: true }).waitFor();
        await shot(page, "installed");
        const [cookie] = await beside.cookies();
        ensure(cookie.secure, "the cookie is for TLS only");
        await beside.close();
      } finally {
        child.kill();
        await agentcube("delete", "-f", file);
        await rm(directory, { recursive: true });
      }
    },
  };
}
