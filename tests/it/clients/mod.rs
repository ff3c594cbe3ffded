//! The client libraries against real servers.

mod client;
mod client_faults;
mod python;
mod worker;
