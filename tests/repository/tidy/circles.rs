//! No circles: in every folder of `src`, the uses between its files and subfolders lead in one direction.
//!
//! A subfolder counts as one. A module and its own children may use each other. A use of a re-export is a use of the
//! file that defines the name. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::expect_none;
use super::source::{Mention, Source, crates, sources};

/// The path of a module from the root of the library.
type ModulePath<'s> = Vec<&'s str>;

/// The uses between the children of each folder: from, to, and where.
type UsesByFolder<'s> = BTreeMap<ModulePath<'s>, BTreeMap<(&'s str, &'s str), Vec<String>>>;

/// Several children of one folder that use each other in a circle.
struct Circle<'s> {
    folder: String,
    members: Vec<&'s str>,
    /// The uses that make it.
    uses: Vec<String>,
}

/// The modules of the library that are not test code.
struct Modules<'s> {
    sources: BTreeMap<ModulePath<'s>, &'s Source>,
    /// Where the names come from that `use` lines bring into a module.
    brought: BTreeMap<(ModulePath<'s>, &'s str), ModulePath<'s>>,
}

impl<'s> Modules<'s> {
    fn of(sources: &'s [Source]) -> Self {
        let files = sources.iter().filter(|source| !source.is_test_file());
        let all: Vec<_> = files.filter_map(|source| Some((path_of(source)?, source))).collect();
        let tests: Vec<_> = all.iter().flat_map(|(path, source)| modules_of_tests(path, source)).collect();
        let is_product = |path: &ModulePath<'_>| !tests.iter().any(|test| path.starts_with(test));
        let sources = all.into_iter().filter(|(path, _)| is_product(path)).collect();
        let mut modules = Self { sources, brought: BTreeMap::new() };
        let mut brought = BTreeMap::new();
        for (path, source) in &modules.sources {
            for mention in source.mentions.iter().filter(|mention| !mention.in_test && mention.depth == 0) {
                if let (Some(name), Some(from)) = (&mention.brings, modules.absolute(path, mention)) {
                    brought.insert((path.clone(), name.as_str()), from);
                }
            }
        }
        modules.brought = brought;
        modules
    }

    /// The path that a mention in a module stands for, from the root of the library; none if it leads out of it.
    fn absolute(&self, module: &ModulePath<'s>, mention: &'s Mention) -> Option<ModulePath<'s>> {
        let segments: Vec<&str> = mention.text.split("::").filter(|segment| *segment != "self").collect();
        let ups = segments.iter().take_while(|segment| **segment == "super").count();
        match segments.first()? {
            &"crate" => Some([crate_of(module), &segments[1..]].concat()),
            first if layer(first).is_some() => Some([&layer(first)?[..], &segments[1..]].concat()),
            &"super" => {
                let left = (module.len() + mention.depth).checked_sub(ups)?.min(module.len());
                Some([&module[..left], &segments[ups..]].concat())
            }
            first => {
                let child = [&module[..], &[first]].concat();
                self.sources.contains_key(&child).then(|| [&module[..], &segments].concat())
            }
        }
    }

    /// The module that defines what a path stands for. Re-exports are followed.
    fn defining(&self, mut path: ModulePath<'s>) -> ModulePath<'s> {
        const RE_EXPORTS_MAX: usize = 8;
        let mut module = ModulePath::new();
        let mut re_exports = 0;
        let mut at = 0;
        while at < path.len() {
            let child = [&module[..], &[path[at]]].concat();
            if self.sources.contains_key(&child) {
                module = child;
                at += 1;
            } else if let Some(from) = self.brought.get(&(module.clone(), path[at]))
                && re_exports < RE_EXPORTS_MAX
            {
                path = [&from[..], &path[at + 1..]].concat();
                (module, at, re_exports) = (ModulePath::new(), 0, re_exports + 1);
            } else {
                break;
            }
        }
        module
    }

    fn uses(&self) -> UsesByFolder<'s> {
        let mut uses = UsesByFolder::new();
        for (user, source) in &self.sources {
            for mention in source.mentions.iter().filter(|mention| !mention.in_test) {
                let Some(path) = self.absolute(user, mention) else { continue };
                let used = self.defining(path);
                let shared = user.iter().zip(&used).take_while(|(one, other)| one == other).count();
                if let (Some(&from), Some(&to)) = (user.get(shared), used.get(shared)) {
                    let of_folder = uses.entry(user[..shared].to_vec()).or_default();
                    let place = format!("{}:{}: {}", source.path, mention.line, mention.text);
                    of_folder.entry((from, to)).or_default().push(place);
                }
            }
        }
        uses
    }
}

/// The module of a file of the library.
fn path_of(source: &Source) -> Option<ModulePath<'_>> {
    let below = source.path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let mut path: ModulePath<'_> = below.split('/').collect();
    path.pop_if(|last| ["mod", "lib", "main"].contains(last));
    (!path.is_empty()).then_some(path)
}

/// The module of the crate that a module belongs to.
fn crate_of<'m, 's>(module: &'m [&'s str]) -> &'m [&'s str] {
    let folders = crates().iter().map(|one| one.folder.split('/').count());
    let inside = crates()
        .iter()
        .zip(folders)
        .filter(|(one, length)| module.len() >= *length && one.folder.split('/').eq(module[..*length].iter().copied()));
    &module[..inside.map(|(_, length)| length).max().unwrap_or(0)]
}

/// The module of a crate by its name in paths.
fn layer(name: &str) -> Option<ModulePath<'static>> {
    let found = crates().iter().find(|one| one.package.replace('-', "_") == name)?;
    Some(found.folder.split('/').collect())
}

/// The modules that a file declares for tests only.
fn modules_of_tests<'s>(path: &ModulePath<'s>, source: &'s Source) -> Vec<ModulePath<'s>> {
    let declared = source.mentions.windows(2).filter(|pair| pair[0].text == "mod" && pair[0].in_test);
    declared.map(|pair| [&path[..], &[pair[1].text.as_str()]].concat()).collect()
}

/// The circles of each folder, with the uses that make them.
fn circles(sources: &[Source]) -> Vec<Circle<'_>> {
    let mut found = Vec::new();
    for (folder, uses) in Modules::of(sources).uses() {
        let reached = |from| {
            let (mut known, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(from) = next.pop() {
                next.extend(uses.keys().filter(|(user, used)| *user == from && known.insert(*used)).map(|(_, to)| *to));
            }
            known
        };
        let users: BTreeSet<&str> = uses.keys().map(|(user, _)| *user).collect();
        let reach: BTreeMap<&str, BTreeSet<&str>> = users.iter().map(|user| (*user, reached(*user))).collect();
        let mut left = users;
        while let Some(first) = left.pop_first() {
            let is_mutual = |other: &&&str| reach[first].contains(**other) && reach[**other].contains(first);
            let mut members = vec![first];
            members.extend(left.iter().filter(is_mutual).copied());
            left.retain(|other| !members.contains(other));
            if members.len() > 1 {
                let inside = uses.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
                let uses = inside.map(|((from, to), places)| format!("{from} -> {to}: {}", places[0])).collect();
                let folder = [&["src"], &folder[..]].concat().join("/");
                found.push(Circle { folder, members, uses });
            }
        }
    }
    found
}

#[test]
fn modules_of_a_folder_do_not_use_each_other_in_a_circle() {
    let circles = circles(sources());
    let mut found = Vec::new();
    for circle in &circles {
        found.push(format!("{}: {}", circle.folder, circle.members.join(", ")));
        found.extend(circle.uses.iter().map(|place| format!("    {place}")));
    }
    expect_none("move the type, constant or function to the lowest module that needs it", found);
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| parse(path, text)).collect();
        circles(&sources).iter().map(|circle| format!("{}: {}", circle.folder, circle.members.join(", "))).collect()
    }

    #[test]
    fn a_circle_is_found_in_the_folder_where_its_members_stand() {
        let folder = ("src/a/mod.rs", "mod b; mod c; pub use c::deep::{Deep as Renamed};");
        let lower = ("src/a/c/deep.rs", "pub struct Deep; pub struct Other;");
        let upward = ("src/a/c/deep.rs", "pub struct Deep; fn up() { super::super::b::call() }");
        let user = ("src/a/b.rs", "use crate::a::Renamed; pub fn call() {}");
        assert_eq!(found(&[folder, ("src/a/c/mod.rs", "mod deep;"), lower, user]), [""; 0]);
        assert_eq!(found(&[folder, ("src/a/c/mod.rs", "mod deep;"), upward, user]), ["src/a: b, c"]);
    }

    #[test]
    fn crates_are_folders() {
        let lower = ("src/domain/lib.rs", "pub struct Own; use tallystone_engine::deep::Upper;");
        let upper = ("src/engine/deep.rs", "use tallystone_domain::Own; pub struct Upper;");
        assert_eq!(found(&[("src/engine/lib.rs", "pub mod deep;"), lower, upper]), ["src: domain, engine"]);
        let inside = ("src/engine/mine.rs", "use crate::deep::Upper;");
        let back = ("src/engine/deep.rs", "use super::mine; pub struct Upper;");
        assert_eq!(found(&[("src/engine/lib.rs", "mod deep; mod mine;"), inside, back]), ["src/engine: deep, mine"]);
    }

    #[test]
    fn parents_children_and_tests_make_no_circle() {
        let parent = ("src/a.rs", "mod b; #[cfg(test)] mod b_laws; mod c; use b::B; pub struct A;");
        let child = ("src/a/b.rs", "use super::A; #[cfg(test)] mod tests { use crate::a::c::C; }");
        let laws = ("src/a/b_laws.rs", "use super::c::C; use super::b::B;");
        assert_eq!(found(&[parent, child, laws, ("src/a/c.rs", "use super::b::B; use super::b_laws::L;")]), [""; 0]);
    }
}
