//! x
pub async fn run(_: kube::Client, _: super::Caches, _: tokio_util::sync::CancellationToken) {}
