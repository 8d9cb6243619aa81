//! Objects seen through their schema: which parts are one value, which are merged member by member.
//!
//! Nothing here fails on a value that does not fit the schema: such a value is one value.
//! Only [`validate`] tells what does not fit.

mod blank;
mod compare;
mod field_set;
mod merge;
mod remove;
mod shape;
#[cfg(test)]
pub(super) mod testing;
mod validate;

pub use blank::blank;
pub(super) use compare::{compare, same};
pub(super) use field_set::{field_set, with_named_fields};
pub(super) use merge::merge;
pub(super) use remove::remove;
pub(super) use shape::Node;
pub(super) use validate::validate;
