//! StatefulSets: Pods with names and storage of their own, made, replaced and removed in order.

mod claims;
mod identity;
mod plan;
mod revisions;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
