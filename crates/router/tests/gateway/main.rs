//! The built-in gateway: requests to real HTTP servers through it, and what it says of the objects that it serves.

#[cfg(test)]
mod a2a;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod ext_auth;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod issuer;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod seeing;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod traffic;
#[cfg(test)]
mod world;
