//! Each engine under a server: damage, kills, restarts and cuts.

pub mod cassandra;
mod count_cache;
mod embedded_damage;
mod engines_by_role;
mod explained;
mod hot_counters;
mod late_slices;
mod memcached;
mod over_tls;
mod rotated_password;
