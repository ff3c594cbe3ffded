//! The law of the house as tests: one test for each rule, each finding with its place and what to do instead.
//!
//! The rules are those of `docs/style.md`. An exception is a line in the list beside its rule, with its reason; nothing
//! is switched off inside the code.

mod circles;
mod hygiene;
mod layers;
mod names;
mod shape;
mod source;
mod time_and_tasks;

use source::{Mention, Source};

/// An exception: files whose path begins so, and why the rule does not hold there.
pub struct Except(&'static str, #[allow(dead_code, reason = "for the reader")] &'static str);

/// Fails with all findings, one a line.
pub fn expect_none(rule: &str, findings: Vec<String>) {
    assert!(findings.is_empty(), "{rule}\n{}", findings.join("\n"));
}

/// The mentions of all sources that a rule objects to, each as `path:line: text`.
pub fn mentions_where(objects: impl Fn(&Source, &Mention) -> bool) -> Vec<String> {
    mentions_except(&[], objects)
}

/// The same without those of excepted files; an exception that excepts nothing is a finding itself.
pub fn mentions_except(exceptions: &[Except], objects: impl Fn(&Source, &Mention) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut needed = vec![false; exceptions.len()];
    for source in source::sources() {
        for mention in source.mentions.iter().filter(|mention| objects(source, mention)) {
            match exceptions.iter().position(|Except(prefix, _)| source.path.starts_with(prefix)) {
                Some(exception) => needed[exception] = true,
                None => found.push(format!("{}:{}: {}", source.path, mention.line, mention.text)),
            }
        }
    }
    found.dedup();
    let idle = exceptions.iter().zip(needed).filter(|(_, needed)| !needed);
    found.extend(idle.map(|(Except(prefix, _), _)| format!("the exception for {prefix} is not needed any more")));
    found
}

/// Whether the mention names one of these paths.
pub fn names_any(mention: &Mention, paths: &[&str]) -> bool {
    paths.iter().any(|path| mention.names(path))
}
