//! The built-in gateway: requests to real HTTP servers through it, and what it says of the objects that it serves.

mod objects;
mod requests;
mod streams;
mod world;
