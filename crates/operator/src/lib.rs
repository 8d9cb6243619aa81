//! What every controller shares, whoever's kinds it reconciles: lists and watches, caches of objects, work queues, the
//! shell around `reconcile`, children, Events, leader election, metrics. It decides nothing and knows none of our own kinds.

pub mod cache;
pub mod children;
pub mod controller;
pub mod events;
pub mod leader;
pub mod metrics;
pub mod queue;
pub mod watch;
