//! Settings of earlier releases, which chose one store for everything. They load with a notice.

use toml::Value;

use crate::config::SettingOrigin;

/// Each name of an earlier release.
const REPLACED: [&str; 3] = ["storage.kind", "storage.cluster", "storage.cache_cluster"];

/// Whether a name is one of an earlier release.
pub(super) fn is_replaced(key: &str) -> bool {
    REPLACED.contains(&key)
}

/// The settings of today that a setting of an earlier release stands for; none for any other name. An error says which
/// values the setting had.
pub(super) fn settings_for(key: &str, value: &Value) -> Option<Result<Vec<(&'static str, String)>, String>> {
    if !is_replaced(key) {
        return None;
    }
    let Some(value) = value.as_str() else { return Some(Err("must be a string".to_owned())) };
    let settings = match (key, value) {
        ("storage.kind", "embedded" | "memory") => {
            Ok(vec![("counters.engine", value.to_owned()), ("queues.engine", value.to_owned())])
        }
        // Servers of earlier releases had no queues beside counters on Cassandra.
        ("storage.kind", "cassandra") => {
            Ok(vec![("counters.engine", value.to_owned()), ("queues.engine", "none".to_owned())])
        }
        ("storage.kind", _) => Err(format!(
            "cannot be used: {value:?} is not one of embedded, memory and cassandra; set counters.engine instead"
        )),
        ("storage.cluster", _) => Ok(vec![("counters.cluster", value.to_owned())]),
        _ => Ok(vec![("cache.cluster", value.to_owned())]), // the last of the list above
    };
    Some(settings)
}

/// What to write instead of a setting of an earlier release.
pub(super) fn notice(key: &str, origin: &SettingOrigin, settings: &[(&'static str, String)]) -> String {
    let new: Vec<String> = settings.iter().map(|(key, value)| format!("{key} = {value:?}")).collect();
    format!("{origin}: {key} is a setting of earlier releases; use {} instead", new.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::config::{ConfigSources, CounterEngine, QueueEngine, load};

    fn loaded(text: &str) -> crate::config::LoadedConfig {
        let file = Some((PathBuf::from("old.toml"), text.to_owned()));
        load(&ConfigSources { file, ..ConfigSources::default() }).expect("settings that load")
    }

    #[test]
    fn a_file_of_an_earlier_release_loads_with_a_notice_for_each_setting() {
        let old = "[storage]\nkind = \"cassandra\"\ncluster = \"main\"\ncache_cluster = \"main\"\n\n[clusters.main]\n\
                   kind = \"cassandra\"\nservers = \"127.0.0.1:9042\"\n";
        let found = loaded(old);
        assert_eq!(
            (found.config.counters.engine, found.config.queues.engine),
            (CounterEngine::Cassandra, QueueEngine::None)
        );
        assert_eq!((found.config.counters.cluster.as_str(), found.config.cache.cluster.as_str()), ("main", "main"));
        assert_eq!(found.notices.len(), 3);
        let says = "file old.toml: storage.kind is a setting of earlier releases; use counters.engine = \"cassandra\" and \
                    queues.engine = \"none\" instead";
        assert!(found.notices.iter().any(|notice| notice == says), "{:?}", found.notices);
    }

    #[test]
    fn a_setting_of_today_wins_over_one_of_an_earlier_release_in_the_same_file() {
        let both = loaded("[queues]\nengine = \"embedded\"\n\n[storage]\nkind = \"memory\"\n");
        assert_eq!(
            (both.config.counters.engine, both.config.queues.engine),
            (CounterEngine::Memory, QueueEngine::Embedded)
        );
    }

    #[test]
    fn a_directory_that_no_role_uses_is_pointed_out() {
        let unused =
            loaded("[counters]\nengine = \"memory\"\n\n[queues]\nengine = \"none\"\n\n[storage]\ndata_dir = \"d\"\n");
        assert_eq!(unused.notices.len(), 1, "{:?}", unused.notices);
        assert!(unused.notices[0].contains("storage.data_dir is not used"), "{:?}", unused.notices);
        assert!(loaded("[storage]\ndata_dir = \"d\"\n").notices.is_empty());
    }

    #[test]
    fn a_value_that_the_old_setting_never_had_is_refused_under_its_own_name() {
        let file = Some((PathBuf::from("old.toml"), "[storage]\nkind = \"tape\"\n".to_owned()));
        let error = load(&ConfigSources { file, ..ConfigSources::default() }).expect_err("no such engine").to_string();
        assert!(error.starts_with("file old.toml: storage.kind cannot be used"), "{error}");
    }
}
