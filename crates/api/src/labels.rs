//! Names of labels, annotations, headers and finalizers. They are part of the API: other programs read them.

/// Label of Pods, Jobs and Leases: the Task they belong to.
pub const TASK: &str = "agentcube.io/task";
/// Label of Pods, Jobs and Leases: UID of the Task, since two namespaces may hold Tasks of one name.
pub const TASK_UID: &str = "agentcube.io/task-uid";
/// Label of Pods and Jobs: the revision they were made from, `status.specID` of the Task.
pub const SPEC_ID: &str = "agentcube.io/spec-id";
/// Annotation of an instance: key of the session that holds it; empty or absent when idle.
pub const RESERVE_KEY: &str = "agentcube.io/reserve-key";
/// Annotation of an instance: when its session was last active, RFC 3339.
pub const LAST_ACTIVE: &str = "agentcube.io/last-active";
/// Annotation of an instance: hash of the template it was made from.
pub const TEMPLATE_HASH: &str = "agentcube.io/template-hash";
/// Label of HTTPRoutes: selected by the shared policy of their gateway.
pub const GATEWAY: &str = "agentcube.io/gateway";
/// Finalizer of Tasks.
pub const TASK_FINALIZER: &str = "agentcube.io/release-instances";
/// Header by which the gateway tells an instance of its reservation.
pub const RESERVED_TOKEN_HEADER: &str = "x-reserved-token";
/// Header by which a service that is asked for authorisation says who sends a request; a client's own is removed.
pub const SUBJECT_HEADER: &str = "x-agentcube-subject";
/// Label of Leases of ours: what each is for, [`LEASE_OF_SESSION`], [`LEASE_OF_ALIAS`] or [`LEASE_OF_ROUTER`]. One
/// watch brings all.
pub const LEASE: &str = "agentcube.io/lease";
/// Value of [`LEASE`]: says which instance a session is bound to.
pub const LEASE_OF_SESSION: &str = "session";
/// Value of [`LEASE`]: another name of a session, such as an id that its instance minted; owned by the session's Lease.
pub const LEASE_OF_ALIAS: &str = "alias";
/// Value of [`LEASE`]: says that a router is alive, and what it has seen.
pub const LEASE_OF_ROUTER: &str = "router";
/// Annotation of an instance: the reservation that it was taken for, `<Lease UID>.<leaseTransitions>`. A session is
/// bound when this fits its Lease.
pub const RESERVATION: &str = "agentcube.io/reservation";
/// Annotation of an instance: the router that started it for requests of its own.
pub const CREATED_FOR: &str = "agentcube.io/created-for";
/// Annotation of an instance or a session's Lease: it is about to be given back for this reason, unless a router
/// that uses it objects by removing the annotation.
pub const RELEASING: &str = "agentcube.io/releasing";
/// Annotation of a session's Lease that is being deleted: a router (its name) had requests in flight when it saw the
/// deletion. The instance is then deleted, never given to another session, and the key is free when it is gone.
pub const INTERRUPTED: &str = "agentcube.io/interrupted";
/// Annotation of a session's Lease: the router that binds it, the only one that may.
pub const BINDER: &str = "agentcube.io/binder";
/// Finalizer of a bound session's Lease: its key is free only when its instance has been given back.
pub const SESSION_FINALIZER: &str = "agentcube.io/release-instance";
/// Annotation of a router's Lease: where other routers tell it of requests that they have heard of.
pub const ROUTER_ADDRESS: &str = "agentcube.io/router-address";
/// Annotation of a router's Lease: revision of Leases up to which it has seen, and respects, every change.
pub const SEEN_LEASES: &str = "agentcube.io/seen-leases";
/// Annotation of a router's Lease: revision of Pods up to which it has seen, and respects, every change.
pub const SEEN_PODS: &str = "agentcube.io/seen-pods";
/// Annotation of a router's Lease: revision of Sandboxes up to which it has seen, and respects, every change.
pub const SEEN_SANDBOXES: &str = "agentcube.io/seen-sandboxes";
/// Annotation of a session's Lease: its instance is paused, or is about to be, under this number. Whoever wants to serve
/// the session wakes the instance under the same number ([`WOKEN`]), and removes this when it runs.
pub const RESTS: &str = "agentcube.io/rests";
/// Annotation of a Sandbox that is an instance: the number under which it was last woken. It is never paused under the
/// same number again, so a late pause does not stop what was woken.
pub const WOKEN: &str = "agentcube.io/woken";
/// Annotation of the template in a revision's PodTemplate: what its Sandboxes are, as JSON, where its form is
/// `sandboxes`.
pub const SANDBOX_SPEC: &str = "agentcube.io/sandbox";
/// Label of a revision's PodTemplate: how instances are made from it, `slots` (Pods of ours), `sandboxes` (Sandboxes on a
/// pool) or `job`.
pub const FORM: &str = "agentcube.io/form";
/// Label of an instance: number of its slot, below the Task's maximum. Absent on the Pods of a Job.
pub const SLOT: &str = "agentcube.io/slot";
/// Label of the Pod that fetches and checks a code bundle before the first instance: the revision it does that for. Such
/// a Pod has no [`TASK_UID`], so that nobody takes it for an instance.
pub const PREPARES: &str = "agentcube.io/prepares";
/// Annotation of a revision's PodTemplate: the [`TEMPLATE_HASH`] for which what had to be prepared has been.
pub const PREPARED: &str = "agentcube.io/prepared";

/// Annotation of a Sandbox: its allocation, until the controller has moved it into status.
pub const SANDBOX_ALLOCATION: &str = "sandbox.fast.io/allocation";
/// Label of agent Pods and Sandboxes: their pool.
pub const SANDBOX_POOL: &str = "sandbox.fast.io/pool";
/// Label of agent Pods: the number of their place in the pool.
pub const SANDBOX_AGENT: &str = "sandbox.fast.io/agent";
/// Annotation of a Sandbox: request id of the call that created it.
pub const SANDBOX_REQUEST_ID: &str = "sandbox.fast.io/request-id";
/// Finalizer of Sandboxes.
pub const SANDBOX_FINALIZER: &str = "sandbox.fast.io/release-slot";

/// Label of a container on a node: ours, so the janitor may remove it.
pub const RUNTIME_MANAGED: &str = "fast-sandbox.io/managed";
/// Label of a container on a node: UID of its agent Pod.
pub const RUNTIME_AGENT_UID: &str = "fast-sandbox.io/agent-uid";
/// Label of a container on a node: name of its agent Pod.
pub const RUNTIME_AGENT_NAME: &str = "fast-sandbox.io/agent-name";
/// Label of a container on a node: namespace of its Sandbox.
pub const RUNTIME_NAMESPACE: &str = "fast-sandbox.io/namespace";
/// Label of a container on a node: id of the sandbox.
pub const RUNTIME_ID: &str = "fast-sandbox.io/id";
/// Label of a container on a node: UID of its Sandbox.
pub const RUNTIME_CLAIM_UID: &str = "fast-sandbox.io/claim-uid";
/// Label of a container on a node: name of its Sandbox.
pub const RUNTIME_SANDBOX_NAME: &str = "fast-sandbox.io/sandbox-name";

/// Label of everything made for an App: its name.
pub const MIDDLEWARE_APP: &str = "middleware.io/app";
/// Label of everything made for a Component: its name.
pub const MIDDLEWARE_COMPONENT: &str = "middleware.io/component";
/// Label of everything made for a Group: its name.
pub const MIDDLEWARE_GROUP: &str = "middleware.io/group";
/// Label of everything made after a Plugin: its name.
pub const MIDDLEWARE_PLUGIN: &str = "middleware.io/plugin";
/// Label of a middleware's Pod: its role, which Services select.
pub const MIDDLEWARE_ROLE: &str = "middleware.io/role";
/// Label of everything made for a Backup: its name.
pub const MIDDLEWARE_BACKUP: &str = "middleware.io/backup";
/// Annotation of an App: tasks to carry out again; consumed once.
pub const MIDDLEWARE_RETRY_CONTROL: &str = "middleware.io/retry-control";
/// Annotation of an App: tasks to cancel; consumed once.
pub const MIDDLEWARE_CANCEL_CONTROL: &str = "middleware.io/cancel-control";
/// Annotation of an App: control annotations that were taken and are about to be obeyed, under a number of their own.
pub const MIDDLEWARE_CONTROL_TAKEN: &str = "middleware.io/control-taken";
/// Annotation of an App: `true` while a newer spec waits for the running tasks.
pub const MIDDLEWARE_PENDING_CHANGE: &str = "middleware.io/pending-change-detected";
/// Label and annotation of Pods of a Group: the revision of the template that they were made from.
pub const MIDDLEWARE_REVISION: &str = "middleware.io/revision";
/// Annotation of Pods of a Group: the revision of the configuration that they have taken.
pub const MIDDLEWARE_CONFIGURATION: &str = "middleware.io/configuration";
/// Finalizer of Apps, Components and Groups: the stop order has to run.
pub const MIDDLEWARE_FINALIZER: &str = "middleware.io/stop-order";

/// Label of Jobs and JSBundles: who manages them.
pub const FORGE_MANAGED_BY: &str = "frontend-forge.io/managed-by";
/// Label of Jobs and JSBundles: their FrontendIntegration.
pub const FORGE_FI_NAME: &str = "frontend-forge.io/fi-name";
/// Label of Jobs and JSBundles: first 63 characters of the hash of the spec.
pub const FORGE_SPEC_HASH: &str = "frontend-forge.io/spec-hash";
/// Label of JSBundles: first 63 characters of the hash of the manifest.
pub const FORGE_MANIFEST_HASH: &str = "frontend-forge.io/manifest-hash";
/// Annotation of a JSBundle: the Job that built it.
pub const FORGE_BUILD_JOB: &str = "frontend-forge.io/build-job";
/// Annotation of a JSBundle: the generation of the FrontendIntegration that it was built from; an older one never replaces it.
pub const FORGE_GENERATION: &str = "frontend-forge.io/generation";
/// Value of [`FORGE_MANAGED_BY`].
pub const FORGE: &str = "frontend-forge";
/// Annotation of a FrontendIntegration: a new value asks for a rebuild.
pub const FORGE_REBUILD: &str = "frontend-forge.io/rebuild";

/// A hash as a label value: without its `sha256:` and cut to the 63 characters that a label may have.
pub fn hash_label(hash: &str) -> &str {
    let hex = hash.strip_prefix("sha256:").unwrap_or(hash);
    hex.get(..63).unwrap_or(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_fit_into_labels() {
        let hex = "0123456789abcdef".repeat(4);
        assert_eq!(hash_label(&format!("sha256:{hex}")), &hex[..63]);
        assert_eq!(hash_label("sha256:ab"), "ab");
        assert_eq!(hash_label("ab"), "ab");
    }
}
