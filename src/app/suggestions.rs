//! Suggests an existing name for an unknown one.
//!
//! A misleading suggestion is worse than none. So a name is suggested only if the text is a part of it or differs very
//! little from it. Otherwise the caller lists all names.

use tallystone_domain::limits::SIMILAR_NAME_BYTES_MAX;

/// Returns the name that the text most likely meant, if any is close enough.
pub fn closest_name<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = folded(written);
    // The comparison costs the product of both lengths.
    if written.is_empty() || written.len() > SIMILAR_NAME_BYTES_MAX {
        return None;
    }
    let errors_max = (written.chars().count() / 3).max(1);
    let scored = names.into_iter().filter_map(|name| {
        let known = folded(name);
        let distance = strsim::damerau_levenshtein(&written, &known);
        let rank = match () {
            () if known.starts_with(&written) || written.starts_with(&known) => 0,
            () if written.split('_').all(|word| known.split('_').any(|other| other == word)) => 1,
            () if distance <= errors_max => 2,
            () => return None,
        };
        Some(((rank, distance), name))
    });
    scored.min_by_key(|(score, _)| *score).map(|(_, name)| name)
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_only_if_it_was_likely_meant() {
        let names = ["listen", "drain_deadline_ms", "worker_threads"];
        for (written, name) in [
            ("drain", Some("drain_deadline_ms")),
            ("drain_ms", Some("drain_deadline_ms")),
            ("Worker-Threads", Some("worker_threads")),
            ("listne", Some("listen")),
            ("listens", Some("listen")),
            ("port", None),
            ("lst", None),
            ("", None),
            (&"listen".repeat(1_000_000), None),
        ] {
            assert_eq!(closest_name(written, names), name, "{written}");
        }
    }
}
