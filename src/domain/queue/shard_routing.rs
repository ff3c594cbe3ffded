//! Routing of messages to shards.
//!
//! An exclusive queue routes by the exclusivity value, so that all messages of a value are in one shard, which can
//! enforce the limit. A simple queue routes by the shard key, or else by the message id. The hash is CRC-32 (ISO-HDLC),
//! as in Alibaba's timeout center, and the number of shards is a power of two.

use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{Metadata, RoutingValue};
use crate::queue::messages::message_id::MessageId;
use crate::queue::setup::settings::Settings;

/// The destination of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageRoute {
    /// The value that selected the shard, unless the id did.
    pub routing: Option<RoutingValue>,
    /// The number of the shard.
    pub shard: u32,
}

/// Computes the shard of a message in a queue of `shards` shards. O(bytes of the value).
pub fn route(
    settings: &Settings,
    shards: u32,
    id: &MessageId,
    shard_key: Option<&str>,
    metadata: &Metadata,
) -> Result<MessageRoute, InvalidCommandPart> {
    let routing = match (&settings.exclusivity, shard_key) {
        (Some(_), Some(_)) => return Err(InvalidCommandPart::ShardKey),
        (Some(exclusivity), None) => {
            let value = metadata.get(&exclusivity.key).ok_or(InvalidCommandPart::ExclusivityValue)?;
            Some(RoutingValue::new(value).map_err(|_| InvalidCommandPart::ExclusivityValue)?)
        }
        (None, Some(key)) => Some(RoutingValue::new(key)?),
        (None, None) => None,
    };
    let shard = match &routing {
        Some(routing) => shard_of(shards, routing.as_str()),
        None => shard_of(shards, &id.text()),
    };
    Ok(MessageRoute { routing, shard })
}

/// Computes the shard of a value. O(bytes).
pub fn shard_of(shards: u32, value: &str) -> u32 {
    assert!(shards.is_power_of_two(), "a queue has 2^n shards");
    crc32fast::hash(value.as_bytes()) & (shards - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::setup::settings::Exclusivity;
    use crate::queue::tests::settings;

    fn routed(
        settings: &Settings,
        key: Option<&str>,
        pairs: &[(&str, &str)],
    ) -> Result<MessageRoute, InvalidCommandPart> {
        let id = MessageId::new("123456789").expect("a legal id");
        route(settings, 1 << 8, &id, key, &Metadata::new(pairs.iter().copied()).expect("legal pairs"))
    }

    fn exclusive() -> Settings {
        let key = "title".into();
        let exclusivity = Exclusivity { key, max_in_flight_per_value: 1, strict_order_per_value: false };
        Settings { exclusivity: Some(exclusivity), ..settings() }
    }

    #[test]
    fn the_hash_never_changes() {
        // The check value of CRC-32/ISO-HDLC is 0xcbf43926.
        assert_eq!(routed(&settings(), None, &[]).map(|route| route.shard), Ok(0x26));
        assert_eq!(shard_of(1 << 16, "123456789"), 0x3926);
        assert_eq!(shard_of(1, "anything"), 0);
    }

    #[test]
    fn a_simple_queue_routes_by_its_shard_key_first() {
        let by_key = routed(&settings(), Some("eu"), &[("title", "x")]).expect("a route");
        assert_eq!(by_key.routing.as_ref().map(RoutingValue::as_str), Some("eu"));
        assert_eq!(by_key.shard, shard_of(256, "eu"));
        assert_eq!(routed(&settings(), Some(""), &[]), Err(InvalidCommandPart::Routing));
    }

    #[test]
    fn an_exclusive_queue_routes_by_the_value_and_refuses_a_shard_key() {
        let by_value = routed(&exclusive(), None, &[("title", "x"), ("zone", "a")]).expect("a route");
        assert_eq!(by_value.routing.as_ref().map(RoutingValue::as_str), Some("x"));
        assert_eq!(routed(&exclusive(), Some("eu"), &[("title", "x")]), Err(InvalidCommandPart::ShardKey));
        assert_eq!(routed(&exclusive(), None, &[("zone", "a")]), Err(InvalidCommandPart::ExclusivityValue));
        assert_eq!(routed(&exclusive(), None, &[("title", "")]), Err(InvalidCommandPart::ExclusivityValue));
    }
}
