// The kinds that have pages, and where the API server keeps their objects.

export interface Kind {
  /** In the addresses of pages. */
  id: string;
  kind: string;
  group: string;
  version: string;
  plural: string;
}

const kind = (id: string, kind: string, group: string, version: string, plural: string): Kind => ({ id, kind, group, version, plural });

export const TASK = kind("tasks", "Task", "agentcube.io", "v1alpha1", "tasks");
export const GATEWAY = kind("gateways", "TaskGateway", "agentcube.io", "v1alpha1", "taskgateways");
export const POOL = kind("pools", "SandboxPool", "sandbox.fast.io", "v1alpha1", "sandboxpools");
export const SANDBOX = kind("sandboxes", "Sandbox", "sandbox.fast.io", "v1alpha1", "sandboxes");
export const APP = kind("apps", "App", "middleware.io", "v1alpha1", "apps");
export const COMPONENT = kind("components", "Component", "middleware.io", "v1alpha1", "components");
export const GROUP = kind("groups", "Group", "middleware.io", "v1alpha1", "groups");
export const FRONTEND = kind("frontends", "FrontendIntegration", "frontend-forge.io", "v1alpha1", "frontendintegrations");
export const BUNDLE = kind("bundles", "JSBundle", "frontend-forge.io", "v1alpha1", "jsbundles");
export const POD = kind("pods", "Pod", "", "v1", "pods");
export const JOB = kind("jobs", "Job", "batch", "v1", "jobs");
export const LEASE = kind("leases", "Lease", "coordination.k8s.io", "v1", "leases");
export const EVENT = kind("events", "Event", "", "v1", "events");
export const NAMESPACE = kind("namespaces", "Namespace", "", "v1", "namespaces");

/** Those that have a page for each of their objects. */
export const SHOWN = [TASK, GATEWAY, POOL, SANDBOX, APP, COMPONENT, GROUP, FRONTEND, BUNDLE, POD];

/** Where objects of a kind are: all, those of a namespace, or one. */
export function pathOf(kind: Kind, namespace?: string, name?: string): string {
  const root = kind.group ? `/apis/${kind.group}/${kind.version}` : `/api/${kind.version}`;
  const place = namespace ? `/namespaces/${namespace}` : "";
  return `${root}${place}/${kind.plural}${name ? `/${name}` : ""}`;
}

/** The page of an object, if its kind has one. */
export function pageOf(name: string, namespace: string, kindName: string): string | null {
  const found = SHOWN.find((one) => one.kind === kindName);
  return found ? `/ui/${found.id}/${namespace}/${name}` : null;
}
