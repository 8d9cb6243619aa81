//! The runtimes that a Pod can choose by its RuntimeClass: the built-in one, and the OCI runtimes that this machine has.

use std::path::PathBuf;
use std::sync::Arc;

use agentcube_runtime::native::Native;
use agentcube_runtime::oci::Oci;
use agentcube_runtime::spawner::Handle;
use agentcube_runtime::{Handlers, Runtime};
use anyhow::Context;
use futures_util::future::try_join_all;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};

/// The built-in runtime by name; it is also what Pods without a RuntimeClass get.
const NATIVE: &str = "native";

/// Finds the runtimes in these directories.
pub(crate) fn find(spawner: &Handle, directories: Vec<PathBuf>) -> Handlers {
    let native: Arc<dyn Runtime> = Arc::new(Native::new(spawner.clone()));
    let mut handlers = Handlers::from([(String::new(), native.clone()), (NATIVE.to_owned(), native)]);
    for program in Oci::find(directories) {
        let kind = program.kind;
        match Oci::new(spawner.clone(), program) {
            Ok(runtime) => {
                let runtime: Arc<dyn Runtime> = Arc::new(runtime);
                handlers.extend(kind.handlers().iter().map(|name| ((*name).to_owned(), runtime.clone())));
            }
            Err(error) => tracing::debug!("{kind} is here, but cannot be used: {error}"),
        }
    }
    handlers
}

/// Makes a RuntimeClass of the same name for each handler. One that is there stays as it is.
pub(super) async fn install(client: &kube::Client, handlers: Vec<String>) -> anyhow::Result<()> {
    let api: Api<RuntimeClass> = Api::all(client.clone());
    let present = api.list_metadata(&ListParams::default()).await?.items;
    let missing = handlers.into_iter().filter(|handler| {
        !handler.is_empty() && present.iter().all(|class| class.metadata.name.as_ref() != Some(handler))
    });
    try_join_all(missing.map(|handler| create(&api, handler))).await?;
    Ok(())
}

async fn create(api: &Api<RuntimeClass>, handler: String) -> anyhow::Result<()> {
    let metadata = ObjectMeta { name: Some(handler.clone()), ..ObjectMeta::default() };
    let class = RuntimeClass { metadata, handler, ..RuntimeClass::default() };
    match api.create(&PostParams::default(), &class).await {
        // Somebody was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).with_context(|| format!("cannot make the RuntimeClass {:?}", class.handler)),
    }
}
