//! The rules of a fleet: several servers that count in one store without trusting each other's clocks.
//!
//! The rules are pure: a member is its published heartbeat, and time is the elapsed time of the reader. The protocol
//! around them (heartbeats, joining, publishing) is in the engine. Invariant: before any process considers a member
//! lapsed, that member has stopped acknowledging.

mod member;
mod member_lease;
mod membership_view;
mod ownership;
mod protocol_rules;
pub mod publish_round;
mod secret;

pub use member::{Heartbeat, MemberId, Roles};
pub use member_lease::{MemberLease, Renewal};
pub use membership_view::MembershipView;
pub use ownership::{owner_of, rank_of};
pub use protocol_rules::{ProtocolRule, ProtocolRules};
pub use secret::{FleetSecret, SECRET_BYTES};
