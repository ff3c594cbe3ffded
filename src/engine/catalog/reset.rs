//! The settings that an update returns to their defaults, by name.

use tallystone_domain::{Reason, Reject};

/// The longest part of a caller's text that an error repeats, in characters.
const SHOWN: usize = 64;

/// A setting that has a default: its name, and how it takes the value of the defaults.
pub type ResetRow<S> = (&'static str, fn(&mut S, &S));

/// Returns the named settings to their defaults. A name without a row is refused; it may be a typo of anything.
pub fn reset_to<S>(spec: &mut S, defaults: &S, rows: &[ResetRow<S>], reset: &[String]) -> Result<(), Reject> {
    for name in reset {
        let found = rows.iter().find(|(known, _)| known == name);
        let (_, set) = found.ok_or_else(|| unknown(name, rows.iter().map(|(known, _)| *known)))?;
        set(spec, defaults);
    }
    Ok(())
}

/// Refuses settings that are not what their reset made them. Those with parts may be: a reset of the whole and a value
/// for one part go together.
pub fn check_reset<S: Clone + PartialEq>(
    spec: &S,
    defaults: &S,
    rows: &[ResetRow<S>],
    with_parts: &[&str],
    reset: &[String],
) -> Result<(), Reject> {
    for name in reset.iter().filter(|name| !with_parts.contains(&name.as_str())) {
        let mut again = spec.clone();
        reset_to(&mut again, defaults, rows, std::slice::from_ref(name))?;
        if again != *spec {
            return Err(set_and_reset(Reason::InvalidSettings, name));
        }
    }
    Ok(())
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Reject {
    let shown: String = name.chars().take(SHOWN).collect();
    let all = known.collect::<Vec<_>>().join(", ");
    let what =
        format!("reset names {shown:?}, which is not a setting with a default; the settings with a default are {all}");
    Reject::new(Reason::InvalidSettings, what.as_str()).at("reset", what)
}

/// Refuses to reset a setting that the same call sets to another value: one of the two would be dropped in silence.
pub fn set_and_reset(reason: Reason, name: &str) -> Reject {
    let what = format!("reset names {name}, which the same call sets to another value; send one of the two");
    Reject::new(reason, what.as_str()).at("reset", what)
}
