//! The rules of a fleet: several servers that count in one store, none of which trusts another's clock.
//!
//! Pure: a member is what it has written about itself, time is the elapsed time of whoever looks. The protocol around these
//! rules (heartbeats, joining, publishing) lives in the engine. The one invariant: whoever is taken for lapsed by anybody
//! has stopped acknowledging before.

mod lease;
mod member;
mod ownership;
pub mod round;
mod rules;
mod secret;
mod view;

pub use lease::{Lease, Renewal};
pub use member::{Beat, MemberId, Roles};
pub use ownership::owner_of;
pub use rules::{Rule, Rules};
pub use secret::{SECRET_BYTES, Secret};
pub use view::View;
