//! Every dependency comes from the registry under a licence that we may ship.
//!
//! A plain test instead of a tool, because it needs nothing but cargo: it runs wherever the tests run.

use std::process::Command;

use serde_json::Value;

use crate::pages::root;

/// Licences that ask for no more than attribution.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn every_dependency_may_be_shipped() {
    let packages = packages();
    assert!(packages.len() > 50, "cargo listed the dependencies");
    let mut found = Vec::new();
    for package in &packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        if !is_allowed(text("license")) {
            found.push(format!("{name}: licence `{}`", text("license")));
        }
        match package["source"].as_str() {
            None if package["publish"] == serde_json::json!([]) => {} // ours: a member of the workspace
            None => found.push(format!("{name}: a path outside the workspace")),
            Some(REGISTRY) => {}
            Some(other) => found.push(format!("{name}: from {other}")),
        }
    }
    assert!(
        found.is_empty(),
        "depend on something else, or add the licence above after reading it\n{}",
        found.join("\n")
    );
}

/// The packages that cargo resolves for this platform, build and development ones included.
fn packages() -> Vec<Value> {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc is where cargo is");
    let version = String::from_utf8(version.stdout).expect("rustc speaks UTF-8");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo answers JSON");
    metadata["packages"].as_array().expect("there are packages").clone()
}

/// Whether an SPDX expression can be met by the allowed licences alone. The old `A/B` means `A OR B`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(&mut words);
    met && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words) -> bool {
    let mut met = all(words);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words);
    }
    met
}

fn all(words: &mut Words) -> bool {
    let mut met = one(words);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words);
    }
    met
}

fn one(words: &mut Words) -> bool {
    match words.next() {
        Some("(") => {
            let met = any(words);
            words.next() == Some(")") && met
        }
        Some(licence) if words.next_if_eq(&"WITH").is_some() => {
            let exception = words.next().unwrap_or_default();
            ALLOWED.contains(&format!("{licence} WITH {exception}").as_str())
        }
        Some(licence) => ALLOWED.contains(&licence),
        None => false,
    }
}

#[test]
fn an_expression_is_met_only_by_allowed_licences() {
    for met in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0", "GPL-2.0-only OR Zlib"] {
        assert!(is_allowed(met), "{met}");
    }
    for unmet in
        ["", "GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0", "MIT WITH Strange-exception", "(MIT", "MIT MIT", "OR MIT"]
    {
        assert!(!is_allowed(unmet), "{unmet}");
    }
}
