//! Tables of settings: dotted keys, the key that documents another, and sections of any name, which take what they lack
//! from the documented one.

use toml::{Table, Value};

/// The kind of a value, in words.
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

/// Sections that hold others of any name, each with the one among them that is documented.
const NAMED: [(&str, &str); 2] = [("clusters", "embedded"), ("auth.jwt", "main")];

/// The key that is documented for a key: clusters and issuers have any name.
pub(super) fn like(key: &str) -> String {
    let inside = |(section, documented): &(&str, &str)| {
        let named = key.strip_prefix(section)?.strip_prefix('.')?;
        Some(match named.split_once('.') {
            Some((_, setting)) => format!("{section}.{documented}.{setting}"),
            None => format!("{section}.{documented}"),
        })
    };
    // Every other section has a fixed name.
    NAMED.iter().find_map(inside).unwrap_or_else(|| key.to_owned())
}

/// Gives every section of any name the settings that nobody gave it: those of the one that is documented.
pub(super) fn complete_named(table: &mut Table, like: &Table) {
    for (section, documented) in NAMED {
        let documented =
            find(like, &format!("{section}.{documented}")).and_then(Value::as_table).cloned().unwrap_or_default();
        let all = section.split('.').try_fold(&mut *table, |table, name| table.get_mut(name)?.as_table_mut());
        for own in all.into_iter().flat_map(Table::iter_mut).filter_map(|(_, value)| value.as_table_mut()) {
            for (key, value) in &documented {
                own.entry(key).or_insert_with(|| value.clone());
            }
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
