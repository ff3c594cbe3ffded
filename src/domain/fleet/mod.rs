//! The rules of a fleet: several servers that count in one store, none of which trusts another's clock.
//!
//! Pure: a member is what it has written about itself, time is the elapsed time of whoever looks. The protocol around these
//! rules (heartbeats, joining, publishing) lives in the engine. The one invariant: whoever is taken for lapsed by anybody
//! has stopped acknowledging before.

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
pub use ownership::owner_of;
pub use protocol_rules::{ProtocolRule, ProtocolRules};
pub use secret::{FleetSecret, SECRET_BYTES};
