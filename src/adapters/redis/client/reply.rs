//! The reply to a command, in words of ours.

use bytes::Bytes;

use crate::client::failure::{CallFailure, FailureCause};

/// A reply.
#[derive(Clone, PartialEq, Debug)]
pub enum RedisReply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A string.
    Bytes(Bytes),
    /// A status, as `OK`.
    Status(String),
    /// Several replies.
    List(Vec<Self>),
    /// Pairs of replies.
    Map(Vec<(Self, Self)>),
    /// A floating-point number.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// An error inside a list.
    Refused {
        /// The first word.
        code: String,
        /// The whole text.
        text: String,
    },
}

impl RedisReply {
    /// Its number.
    pub fn into_int(self) -> Result<i64, CallFailure> {
        match self {
            Self::Int(number) => Ok(number),
            other => Err(other.is_not("a number")),
        }
    }

    /// Its bytes; those of a status too.
    pub fn into_bytes(self) -> Result<Bytes, CallFailure> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Status(text) => Ok(Bytes::from(text)),
            other => Err(other.is_not("a string")),
        }
    }

    /// Its text, if its bytes are one.
    pub fn into_text(self) -> Result<String, CallFailure> {
        let bytes = self.into_bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| CallFailure::new(FailureCause::Protocol, "the reply is not a text"))
    }

    /// Its parts. A map answers keys and values in turn.
    pub fn into_list(self) -> Result<Vec<Self>, CallFailure> {
        match self {
            Self::List(parts) => Ok(parts),
            Self::Map(pairs) => Ok(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
            other => Err(other.is_not("a list")),
        }
    }

    /// Whether it is no value.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Says the kind only: a reply may hold what users stored.
    fn is_not(&self, wanted: &str) -> CallFailure {
        let kind = match self {
            Self::Nil => "no value",
            Self::Int(_) => "a number",
            Self::Bytes(_) => "a string",
            Self::Status(_) => "a status",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Double(_) => "a floating-point number",
            Self::Bool(_) => "a truth value",
            Self::Refused { .. } => "an error",
        };
        CallFailure::new(FailureCause::Protocol, format!("the reply is {kind}, not {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_ports::EffectOutcome;

    #[test]
    fn a_reply_of_another_kind_is_a_failure_whose_effect_is_unknown() {
        let failure = RedisReply::Bytes(Bytes::from_static(b"secret")).into_int().expect_err("it is no number");
        assert_eq!((&failure.cause, failure.outcome), (&FailureCause::Protocol, EffectOutcome::Unknown));
        assert!(!failure.text.contains("secret"), "{failure}");
        assert!(RedisReply::Nil.into_bytes().is_err() && RedisReply::Int(1).into_list().is_err());
    }

    #[test]
    fn a_reply_is_read_as_what_it_is() {
        assert_eq!(RedisReply::Int(7).into_int().expect("a number"), 7);
        assert_eq!(RedisReply::Status("OK".to_owned()).into_bytes().expect("a string"), "OK");
        let map = RedisReply::Map(vec![(RedisReply::Int(1), RedisReply::Nil)]);
        assert_eq!(map.into_list().expect("a list"), [RedisReply::Int(1), RedisReply::Nil]);
    }
}
