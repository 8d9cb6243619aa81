//! Finds the instance of every request: the Task by its route, the session's key by the Task's extractors, the
//! instance by reservation. The built-in gateway is a thin shell around that.

pub mod extract;
pub mod route;
