//! The settings that an update returns to their defaults, by name.

use tallystone_domain::{Reason, Reject};

/// The longest part of a caller's text that an error repeats, in characters.
const SHOWN: usize = 64;

/// Refuses the name of something that is not a setting with a default; it may be a typo of anything.
pub fn unknown_reset<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Reject {
    let shown: String = name.chars().take(SHOWN).collect();
    let all = known.into_iter().collect::<Vec<_>>().join(", ");
    let what =
        format!("reset names {shown:?}, which is not a setting with a default; the settings with a default are {all}");
    Reject::new(Reason::InvalidSettings, what.as_str()).at("reset", what)
}

/// Refuses to reset a setting that the same call sets to another value: one of the two would be dropped in silence.
pub fn set_and_reset(reason: Reason, name: &str) -> Reject {
    let what = format!("reset names {name}, which the same call sets to another value; send one of the two");
    Reject::new(reason, what.as_str()).at("reset", what)
}
