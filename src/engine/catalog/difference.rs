//! The differences between two settings of an entry, as text.

use std::time::Duration;

use tallystone_domain::counter::NamespaceName;
use tallystone_domain::{Reason, Reject};
use tallystone_ports::CatalogEntry;

/// One setting and its value, as text.
pub struct SettingText {
    /// The path of the setting in the message of the protocol.
    pub path: &'static str,
    pub value: String,
}

/// A value of a setting, as differences show it.
pub trait SettingValue {
    fn text(&self) -> String;
}

macro_rules! shown_as_is {
    ($($type:ty)*) => { $(impl SettingValue for $type { fn text(&self) -> String { self.to_string() } })* };
}
shown_as_is!(bool u32 u64 usize &str String &NamespaceName);

impl SettingValue for Duration {
    fn text(&self) -> String {
        duration_text(*self)
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    fn text(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), T::text)
    }
}

pub fn setting(path: &'static str, value: impl SettingValue) -> SettingText {
    SettingText { path, value: value.text() }
}

/// The differences between the same settings of two specs: `setting: before -> after`, one line per setting.
pub fn differences_between(before: Vec<SettingText>, after: Vec<SettingText>) -> Vec<String> {
    let line = |(before, after): (SettingText, SettingText)| {
        (before.value != after.value).then(|| format!("{}: {} -> {}", before.path, before.value, after.value))
    };
    before.into_iter().zip(after).filter_map(line).collect()
}

/// Refuses differences that a live entry does not allow.
pub fn refuse_fixed<E: CatalogEntry>(lines: &[String]) -> Result<(), Reject> {
    if lines.is_empty() {
        return Ok(());
    }
    let what = format!("cannot change on a live {}: {}", E::WORD, lines.join("; "));
    Err(Reject::new(Reason::SettingIsFixed, what))
}

/// A duration as JSON writes it: `5s`, `0.5s`.
pub fn duration_text(duration: Duration) -> String {
    let fraction = format!("{:09}", duration.subsec_nanos());
    match fraction.trim_end_matches('0') {
        "" => format!("{}s", duration.as_secs()),
        fraction => format!("{}.{fraction}s", duration.as_secs()),
    }
}
