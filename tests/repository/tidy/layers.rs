//! The arrow: a layer uses only the layers below it, and no vendor's type crosses a port.

use super::source::{Mention, Source, sources};
use super::{Except, expect_none, mentions_except, mentions_where, names_any};

/// Each layer and what of ours it may use, itself apart.
const ARROW: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("coalesce", &[]),
    ("ports", &["domain"]),
    ("engine", &["coalesce", "domain", "ports"]),
    ("adapters", &["coalesce", "domain", "ports", "proto"]),
    ("api", &["domain", "ports", "engine", "proto"]),
    ("client", &["proto"]),
    ("proto", &[]),
    ("app", &["domain", "ports", "engine", "adapters", "api", "client", "proto"]),
];

/// Crates of vendors: stores, wires, formats. Inner layers speak their own words.
const VENDORS: &[&str] = &[
    "axum",
    "clap",
    "fjall",
    "http",
    "hyper",
    "hyper_rustls",
    "json5",
    "jsonwebtoken",
    "lsm_tree",
    "memcache",
    "prometheus_client",
    "prost",
    "prost_reflect",
    "prost_types",
    "redis",
    "rustls",
    "scylla",
    "toml",
    "tonic",
    "tower",
    "tower_http",
];

#[test]
fn every_file_of_the_library_belongs_to_a_layer() {
    let known = |layer: &str| ["lib", "main"].contains(&layer) || ARROW.iter().any(|(name, _)| *name == layer);
    let strangers = sources().iter().filter(|source| source.layer().is_some_and(|layer| !known(layer)));
    expect_none("put the file into a layer, or give the new layer its place in ARROW", paths(strangers));
}

#[test]
fn a_layer_uses_only_the_layers_below_it() {
    let upward = mentions_where(|source, mention| {
        let Some((layer, below)) = source.layer().and_then(|layer| ARROW.iter().find(|(name, _)| *name == layer))
        else {
            return false;
        };
        let used = used_layer(source, mention);
        used.is_some_and(|used| {
            used != *layer && ARROW.iter().any(|(name, _)| *name == used) && !below.contains(&used.as_str())
        })
    });
    expect_none("a lower layer answers a value, pushes to a port or wakes a loop; it never calls upward", upward);
}

/// The layer that a path leads to: `crate::domain::…` or enough `super::` to leave the own one.
fn used_layer(source: &Source, mention: &Mention) -> Option<String> {
    let segments: Vec<&str> = mention.text.split("::").collect();
    if ["crate", "tallystone"].contains(&segments[0]) {
        return segments.get(1).map(|&layer| layer.to_owned());
    }
    let ups = segments.iter().take_while(|&&segment| segment == "super").count();
    let folders = source.path.strip_suffix(".rs")?.strip_suffix("/mod").unwrap_or(source.path.strip_suffix(".rs")?);
    let modules = folders.split('/').count() - 1 + mention.depth;
    (ups > 0 && ups == modules).then(|| segments.get(ups).map(|&layer| layer.to_owned()))?
}

#[test]
fn no_vendor_type_crosses_a_port() {
    let inner = ["domain", "ports", "engine"];
    let found = mentions_where(|source, mention| {
        source.layer().is_some_and(|layer| inner.contains(&layer))
            && mention.text.contains("::")
            && VENDORS.contains(&mention.root())
    });
    expect_none("keep clients, wires and formats in adapters, api and app; give the port a type of ours", found);
}

#[test]
fn the_wire_never_names_a_backend() {
    const BACKENDS: &[&str] = &["fjall", "scylla", "redis", "memcache", "embedded", "cassandra", "memcached"];
    let found = mentions_where(|source, mention| {
        source.layer() == Some("api") && mention.text.split("::").any(|segment| BACKENDS.contains(&segment))
    });
    expect_none("api speaks to engine; what a backend can do travels as data", found);
}

#[test]
fn the_domain_is_synchronous() {
    let found = mentions_where(|source, mention| {
        source.layer() == Some("domain")
            && !source.in_test(mention)
            && (["async", "await", "async_trait"].contains(&mention.text.as_str())
                || ["tokio", "futures_util", "async_trait"].contains(&mention.root()) && mention.text.contains("::"))
    });
    expect_none("domain code computes; whoever waits lives in engine or further out", found);
}

#[test]
fn nothing_below_the_app_reads_the_environment() {
    const EXCEPT: &[Except] = &[
        Except("src/app/", "the composition root reads it once"),
        Except("tests/", "tests set the stage"),
        Except("loadtest/", "a program of its own"),
    ];
    let found =
        mentions_except(EXCEPT, |_, mention| names_any(mention, &["std::env", "env::var", "env::var_os", "env::args"]));
    expect_none("take the value as an argument; src/app/config reads the environment", found);
}

#[test]
fn the_service_leaves_no_rule_of_the_fleet_out() {
    let found = mentions_where(|source, mention| {
        !source.in_test(mention) && !source.path.starts_with("tests/") && names_any(mention, &["Rules::without"])
    });
    expect_none("a server keeps all rules; only a simulation takes one out, to show that it would notice", found);
}

#[test]
fn features_are_asked_for_at_the_door_only() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/")) {
        let asks = |line: &String| line.contains("cfg(") && line.contains("feature");
        for (index, _) in source.lines.iter().enumerate().filter(|(_, line)| asks(line)) {
            if source.path != "src/lib.rs" {
                found.push(format!("{}:{}", source.path, index + 1));
            }
        }
    }
    expect_none("cfg(feature) belongs on module declarations of src/lib.rs, never into logic", found);
}

fn paths<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<String> {
    sources.map(|source| source.path.clone()).collect()
}
