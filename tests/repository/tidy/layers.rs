//! The arrow: a crate lists only those below it, and no vendor's type crosses a port.
//!
//! The compiler holds sources to their manifests, so these rules read manifests.

use super::source::{crates, sources};
use super::{Except, expect_none, mentions_except, mentions_where, names_any};

/// Each crate and what of ours it may list. The crates of stores stand in a folder of `adapters`, and none uses another.
const ARROW: &[(&str, &[&str])] = &[
    ("tallystone-proto", &[]),
    ("tallystone-pem", &[]),
    ("tallystone-client", &["pem", "proto"]),
    ("tallystone-domain", &[]),
    ("tallystone-experiments", &["domain"]),
    ("tallystone-coalesce", &[]),
    ("tallystone-ports", &["domain", "experiments"]),
    ("tallystone-engine", &["coalesce", "domain", "experiments", "ports"]),
    ("tallystone-adapters", &["coalesce", "domain", "experiments", "pem", "ports", "proto"]),
    ("tallystone-embedded", &["adapters", "coalesce", "domain", "experiments", "ports", "proto"]),
    ("tallystone-redis", &["adapters", "coalesce", "domain", "ports"]),
    ("tallystone-cassandra", &["adapters", "coalesce", "domain", "experiments", "ports"]),
    ("tallystone-api", &["domain", "engine", "experiments", "ports", "proto"]),
    (
        "tallystone-app",
        &[
            "adapters",
            "api",
            "cassandra",
            "domain",
            "embedded",
            "engine",
            "experiments",
            "pem",
            "ports",
            "proto",
            "redis",
        ],
    ),
    (
        "tallystone-cli",
        &[
            "adapters",
            "api",
            "app",
            "cassandra",
            "client",
            "domain",
            "embedded",
            "engine",
            "experiments",
            "ports",
            "proto",
            "redis",
        ],
    ),
];

/// Crates of vendors: stores, wires, formats. Inner layers speak their own words.
const VENDORS: &[&str] = &[
    "axum",
    "clap",
    "fjall",
    "http",
    "hyper",
    "hyper-rustls",
    "json5",
    "jsonwebtoken",
    "lsm-tree",
    "memcache",
    "prometheus-client",
    "prost",
    "prost-reflect",
    "prost-types",
    "redis",
    "rustls",
    "scylla",
    "toml",
    "tonic",
    "tower",
    "tower-http",
];

#[test]
fn a_crate_lists_only_the_crates_below_it() {
    let mut found = Vec::new();
    for one in crates() {
        let Some((_, below)) = ARROW.iter().find(|(package, _)| *package == one.package) else {
            found.push(format!("{} has no place in ARROW", one.package));
            continue;
        };
        let ours = one.uses.iter().filter_map(|used| used.strip_prefix("tallystone-"));
        found.extend(ours.filter(|used| !below.contains(used)).map(|used| format!("{} lists {used}", one.package)));
    }
    let gone = ARROW.iter().filter(|(package, _)| !crates().iter().any(|one| one.package == *package));
    found.extend(gone.map(|(package, _)| format!("{package} is not there any more")));
    expect_none("a lower layer answers a value, pushes to a port or wakes a loop; it never calls upward", found);
}

#[test]
fn no_vendor_type_crosses_a_port() {
    let inner = ["domain", "experiments", "coalesce", "ports", "engine"].map(|name| format!("tallystone-{name}"));
    let mut found = Vec::new();
    for one in crates().iter().filter(|one| inner.contains(&one.package)) {
        let vendors = one.uses.iter().filter(|used| VENDORS.contains(&used.as_str()));
        found.extend(vendors.map(|vendor| format!("{} lists {vendor}", one.package)));
    }
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
fn no_code_asks_for_a_feature() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/")) {
        let asks = |line: &String| line.contains("cfg(") && line.contains("feature");
        let lines = source.lines.iter().enumerate().filter(|(_, line)| asks(line));
        found.extend(lines.map(|(index, _)| format!("{}:{}", source.path, index + 1)));
    }
    expect_none("what some users leave out is a crate of its own, never a condition in the logic", found);
}

/// The folders of the queue engine. Each uses only those before it.
const QUEUE_FOLDERS: [&str; 8] = ["error", "state", "calls", "catalog", "sessions", "inspect", "work", "operations"];

#[test]
fn a_folder_of_the_queue_engine_uses_only_those_before_it() {
    const ROOT: &str = "src/engine/queues/";
    let place = |folder: &str| QUEUE_FOLDERS.iter().position(|known| *known == folder);
    let (mut found, mut uses) = (Vec::new(), 0);
    for source in sources().iter().filter(|source| source.path.starts_with(ROOT)) {
        let below = source.path[ROOT.len()..].split('/').next().expect("a path");
        let Some(own) = place(below) else {
            assert_eq!(below, "mod.rs", "{}: a folder that is not in QUEUE_FOLDERS", source.path);
            continue;
        };
        for mention in source.mentions.iter().filter(|mention| !source.in_test(mention)) {
            let Some(used) = mention.text.strip_prefix("crate::queues::").and_then(|path| path.split("::").next())
            else {
                continue;
            };
            uses += 1;
            if place(used).is_some_and(|used| used > own) {
                found.push(format!("{}:{}: {}", source.path, mention.line, mention.text));
            }
        }
    }
    assert!(uses > 100, "the uses are where this test looks for them");
    expect_none("move what both need into a folder before them", found);
}
