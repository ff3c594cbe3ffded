//! Implementations of the ports, one folder per technology.

pub mod by_dataset;
pub mod codec;
pub mod files;
pub mod jwt;
pub mod manual;
pub mod memcached;
pub mod memory;
mod opened;
pub mod rollup_rpc;
pub mod store_password;
pub mod store_tls;
pub mod system;
pub mod tls_file;

pub use opened::Opened;
