//! Tables of settings: dotted keys, the key that documents another, and clusters that take what nobody gave them.

use toml::{Table, Value};

/// What a value is, in words.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a time",
        Value::Array(_) => "a list",
        Value::Table(_) => "a section",
    }
}

/// How a text is written that was meant where something else stands: with the port that was given, or as by default.
pub(super) fn in_quotes(key: &str, known: &Value, value: &Value) -> String {
    let (Some(known), name) = (known.as_str(), key.rsplit('.').next().unwrap_or(key)) else { return String::new() };
    let example = match (known.rsplit_once(':'), value.as_integer()) {
        (Some((host, _)), Some(port)) if u16::try_from(port).is_ok() => format!("{host}:{port}"),
        _ => known.to_owned(), // says what it looks like
    };
    match example.is_empty() {
        true => "; write it in quotes".to_owned(),
        false => format!("; write it in quotes: {name} = {example:?}"),
    }
}

/// The key that is documented for a key: clusters have any name.
pub(super) fn like(key: &str) -> String {
    match key.split('.').collect::<Vec<_>>()[..] {
        ["clusters", _] => "clusters.embedded".to_owned(),
        ["clusters", _, setting] => format!("clusters.embedded.{setting}"),
        _ => key.to_owned(), // every other section has a fixed name
    }
}

/// Gives every cluster the settings that nobody gave it: those of the cluster that is documented.
pub(super) fn complete_clusters(table: &mut Table, like: &Table) {
    let documented = find(like, "clusters.embedded").and_then(Value::as_table).cloned().unwrap_or_default();
    let clusters = table.get_mut("clusters").and_then(Value::as_table_mut);
    for cluster in clusters.into_iter().flat_map(Table::iter_mut).filter_map(|(_, value)| value.as_table_mut()) {
        for (key, value) in &documented {
            cluster.entry(key).or_insert_with(|| value.clone());
        }
    }
}

/// The value under a dotted key.
pub(super) fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let parts = section.split('.').filter(|part| !part.is_empty());
    let mut table = table;
    for part in parts {
        table = table.get(part)?.as_table()?;
    }
    table.get(name)
}

/// Puts a value under a key that has a like among the defaults, so that no value stands in its way.
pub(super) fn insert(table: &mut Table, key: &str, value: Value) {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = table;
    for part in section.split('.').filter(|part| !part.is_empty()) {
        let next = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = next.as_table_mut().expect("sections of known keys are tables");
    }
    table.insert(name.to_owned(), value);
}

/// Every value of a table under its dotted key.
pub(super) fn leaves(table: &Table, prefix: &str, found: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(table) => leaves(table, &key, found),
            value => found.push((key, value.clone())),
        }
    }
}
