//! Requests and limits as a runtime takes them.

use std::collections::BTreeMap;

use agentcube_api::Quantity;
use agentcube_runtime::spec::Resources;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::Refusal;

type List = BTreeMap<String, Written>;

pub(super) fn of(container: &Container, processes: u64) -> Result<Resources, Refusal> {
    let resources = container.resources.clone().unwrap_or_default();
    let (limits, requests) = (resources.limits.unwrap_or_default(), resources.requests.unwrap_or_default());
    let cpu_millis = amount(&limits, "cpu", Quantity::milli_value)?;
    Ok(Resources {
        memory_bytes: amount(&limits, "memory", Quantity::value)?,
        cpu_millis,
        cpu_request_millis: amount(&requests, "cpu", Quantity::milli_value)?.or(cpu_millis),
        processes: Some(processes),
    })
}

/// None, and nothing at all, are the same: no limit.
fn amount(list: &List, name: &str, read: impl Fn(&Quantity) -> i64) -> Result<Option<u64>, Refusal> {
    let Some(written) = list.get(name) else { return Ok(None) };
    let quantity: Quantity = written
        .0
        .parse()
        .map_err(|_| Refusal::config(format!("{:?} is not an amount of {name}", written.0)))?;
    Ok(u64::try_from(read(&quantity)).ok().filter(|amount| *amount > 0))
}
