//! The App planner in a world of its own: the API server's rules, Components that do as they are told or fail, and an
//! apply that may die between any two writes.

mod cases;
mod storms;
mod world;
