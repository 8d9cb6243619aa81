//! The four API groups of AgentCube.
mod decimal;
pub mod duration;
#[cfg(test)]
mod gostring;
pub mod quantity;
