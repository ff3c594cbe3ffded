//! The life of a server process: startup, readiness, logs, traces, stop.

mod audit;
mod call_limits;
pub mod granted_requests;
mod grants;
mod headers;
mod hosts;
mod jwt;
pub mod keys;
mod logs;
mod private_files;
mod quotas;
pub mod readiness;
mod refused_starts;
mod roles;
mod sent_metrics;
mod stop;
pub mod tls;
mod traces;
mod volumes;
