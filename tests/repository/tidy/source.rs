//! Reads Rust sources as tokens: what is named where, how long functions are, what is test code.
//!
//! Tokens, because comments and strings must not count and macro bodies must; no types are resolved, so a rule about a
//! path also looks at the `use` lines that bring it into reach.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use crate::pages::root;

/// One source file.
pub struct Source {
    /// The path from the root of the repository.
    pub path: String,
    /// The lines.
    pub lines: Vec<String>,
    /// What the file names.
    pub mentions: Vec<Mention>,
    /// The functions with a body.
    pub functions: Vec<Function>,
    /// The wildcard arms of matches over enums.
    pub wildcards: Vec<usize>,
    /// The lines of test-only items, first and last.
    pub test_lines: Vec<(usize, usize)>,
}

/// A path, `use` included, a method call (`.name`) or a macro call (`name!`).
pub struct Mention {
    /// The segments joined by `::`.
    pub text: String,
    /// Counted from 1.
    pub line: usize,
    /// Whether it stands in test-only code.
    pub in_test: bool,
    /// How many modules deep it stands inside its file.
    pub depth: usize,
    /// The name that a `use` brings into reach; none for other mentions and for `*`.
    pub brings: Option<String>,
}

/// A function with a body.
pub struct Function {
    /// The name.
    pub name: String,
    /// Counted from 1.
    pub line: usize,
    /// From `fn` to the closing brace.
    pub length: usize,
}

impl Source {
    /// The folder below `src`, or the file's stem: `domain` for `src/domain/time.rs`. None outside `src`.
    pub fn layer(&self) -> Option<&str> {
        let below = self.path.strip_prefix("src/")?;
        let first = below.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first))
    }

    /// Whether the whole file is test code.
    pub fn is_test_file(&self) -> bool {
        self.path.starts_with("tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    /// Whether the mention is test code.
    pub fn in_test(&self, mention: &Mention) -> bool {
        mention.in_test || self.is_test_file()
    }

    /// The lines that are not test code.
    pub fn product_lines(&self) -> usize {
        let tests: usize = self.test_lines.iter().map(|(first, last)| last - first + 1).sum();
        self.lines.len() - tests
    }
}

impl Mention {
    /// Whether the path holds these segments one after the other.
    pub fn names(&self, segments: &str) -> bool {
        // Spares all but a few of some millions of calls the lists below.
        if !self.text.contains(segments) {
            return false;
        }
        let wanted: Vec<&str> = segments.split("::").collect();
        let have: Vec<&str> = self.text.split("::").collect();
        have.windows(wanted.len()).any(|window| window == wanted)
    }

    /// The first segment.
    pub fn root(&self) -> &str {
        self.text.split("::").next().expect("split answers at least one piece")
    }
}

/// A crate of the library: a folder below `src` with a manifest.
pub struct Crate {
    /// `tallystone-engine`
    pub package: String,
    /// The folder below `src`.
    pub folder: String,
    /// What its manifest lists, for tests apart.
    pub uses: Vec<String>,
}

/// The crates of the library, read once.
pub fn crates() -> &'static [Crate] {
    static CRATES: OnceLock<Vec<Crate>> = OnceLock::new();
    CRATES.get_or_init(|| {
        let mut manifests = Vec::new();
        collect(&root().join("src"), "toml", &mut manifests);
        manifests.retain(|path| path.ends_with("Cargo.toml"));
        manifests.sort();
        manifests.iter().map(|path| manifest(&relative(path), &fs::read_to_string(path).expect("text"))).collect()
    })
}

/// Reads a manifest whose dependencies are all those of the workspace, one a line.
fn manifest(path: &str, text: &str) -> Crate {
    let mut uses = Vec::new();
    let mut lists_uses = false;
    for line in text.lines() {
        if line.starts_with('[') {
            lists_uses = line == "[dependencies]" || line.ends_with(".dependencies]");
        } else if let (true, Some((name, _))) = (lists_uses, line.split_once(".workspace = true")) {
            uses.push(name.to_owned());
        }
    }
    let package = text.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a package has a name");
    let folder = path.trim_start_matches("src/").trim_end_matches("/Cargo.toml").to_owned();
    Crate { package: package.to_owned(), folder, uses }
}

/// All Rust sources of the repository but generated ones, read once.
pub fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let mut paths = Vec::new();
        for folder in ["src", "tests", "loadtest"] {
            collect(&root().join(folder), "rs", &mut paths);
        }
        paths.retain(|path| !relative(path).starts_with("src/proto/generated/"));
        assert!(paths.len() > 20, "the sources are where this test looks for them");
        paths.sort();
        let read = |path: &PathBuf| parse(&relative(path), &fs::read_to_string(path).expect("a source is text"));
        paths.iter().map(read).collect()
    })
}

/// Finds the files of an extension below a folder, build output apart.
pub fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with(".git") {
                collect(&path, extension, found);
            }
        } else if extension.is_empty() || path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// The path from the root of the repository.
pub fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("the file lies in the repository").to_string_lossy().into_owned()
}

/// Reads a source.
pub fn parse(path: &str, text: &str) -> Source {
    let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut source = Source {
        path: path.to_owned(),
        lines: text.lines().map(str::to_owned).collect(),
        mentions: Vec::new(),
        functions: Vec::new(),
        wildcards: Vec::new(),
        test_lines: Vec::new(),
    };
    walk(stream, Place { in_test: false, depth: 0 }, &mut source);
    source
}

#[derive(Clone, Copy)]
struct Place {
    in_test: bool,
    depth: usize,
}

fn walk(stream: TokenStream, place: Place, source: &mut Source) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    // The first line of an item that an attribute marked as test-only; it ends with a brace group or a semicolon.
    let mut test_item: Option<usize> = None;
    while at < tokens.len() {
        let here = Place { in_test: place.in_test || test_item.is_some(), ..place };
        let ends_item = match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                at += attribute(&tokens[at..], here, &mut test_item, source);
                continue;
            }
            TokenTree::Punct(punct) if punct.as_char() == '.' => {
                method(&tokens[at..], here, source);
                false
            }
            TokenTree::Punct(punct) => punct.as_char() == ';',
            TokenTree::Ident(ident) => {
                at += word(&ident.to_string(), &tokens[at..], here, source);
                continue;
            }
            TokenTree::Group(group) => {
                let opens_module = at >= 2 && is_ident(&tokens[at - 2], "mod");
                walk(group.stream(), Place { depth: here.depth + usize::from(opens_module), ..here }, source);
                group.delimiter() == Delimiter::Brace
            }
            TokenTree::Literal(_) => false,
        };
        if ends_item
            && let Some(first) = test_item.take()
            && !place.in_test
        {
            source.test_lines.push((first, tokens[at].span().end().line));
        }
        at += 1;
    }
}

/// Takes an attribute; answers how many tokens it has.
fn attribute(tokens: &[TokenTree], place: Place, test_item: &mut Option<usize>, source: &mut Source) -> usize {
    let bang = usize::from(matches!(tokens.get(1), Some(TokenTree::Punct(punct)) if punct.as_char() == '!'));
    let Some(TokenTree::Group(group)) = tokens.get(1 + bang) else { return 1 };
    let words: Vec<String> = group.stream().into_iter().map(|token| token.to_string()).collect();
    let joined = words.join("");
    let line = tokens[0].span().start().line;
    let is_test = joined == "test" || joined.ends_with("::test") || joined.contains("::test(");
    let only_for_tests = joined == "cfg(test)" || joined.starts_with("cfg(all(test");
    if bang == 0 && (is_test || only_for_tests) {
        test_item.get_or_insert(line);
    }
    if words.first().is_some_and(|word| word == "ignore") {
        let text = "#[ignore]".to_owned();
        source.mentions.push(Mention { text, line, in_test: true, depth: place.depth, brings: None });
    }
    walk(group.stream(), place, source);
    2 + bang
}

fn method(tokens: &[TokenTree], place: Place, source: &mut Source) {
    if let [_, TokenTree::Ident(name), TokenTree::Group(group), ..] = tokens
        && group.delimiter() == Delimiter::Parenthesis
    {
        push(source, format!(".{name}"), name, place);
    }
}

/// Takes what begins with an identifier; answers how many tokens it has taken.
fn word(first: &str, tokens: &[TokenTree], place: Place, source: &mut Source) -> usize {
    match first {
        "use" => {
            let end = tokens.iter().position(|token| is_punct(token, ';')).unwrap_or(tokens.len());
            use_tree(&tokens[1..end], "", place, source);
            return end;
        }
        "fn" => function(tokens, source),
        "match" => match_arms(tokens, place, source),
        _ => {}
    }
    let (text, taken) = path(tokens);
    let text = if is_macro(&tokens[taken..]) { format!("{text}!") } else { text };
    let TokenTree::Ident(ident) = &tokens[0] else { unreachable!("the caller saw an identifier") };
    push(source, text, ident, place);
    taken
}

fn push(source: &mut Source, text: String, ident: &proc_macro2::Ident, place: Place) {
    let line = ident.span().start().line;
    source.mentions.push(Mention { text, line, in_test: place.in_test, depth: place.depth, brings: None });
}

/// Joins `a :: b :: c`; answers the text and how many tokens it has.
fn path(tokens: &[TokenTree]) -> (String, usize) {
    let mut text = tokens[0].to_string();
    let mut at = 1;
    while let [one, two, TokenTree::Ident(next), ..] = &tokens[at..] {
        if !(is_punct(one, ':') && is_punct(two, ':')) {
            break;
        }
        text = format!("{text}::{next}");
        at += 3;
    }
    (text, at)
}

fn is_macro(rest: &[TokenTree]) -> bool {
    matches!(rest, [TokenTree::Punct(bang), TokenTree::Group(_), ..]
        if bang.as_char() == '!' && bang.spacing() == Spacing::Alone)
}

fn use_tree(tokens: &[TokenTree], prefix: &str, place: Place, source: &mut Source) {
    for branch in tokens.split(|token| is_punct(token, ',')) {
        let mut text = prefix.to_owned();
        let mut named = None;
        let mut brings = None;
        for (at, token) in branch.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) if ident == "as" => {
                    brings = branch.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(ident) => {
                    let glue = if text.is_empty() { "" } else { "::" };
                    // `a::{self}` brings `a`.
                    let own = if ident == "self" { text.rsplit("::").next() } else { None };
                    brings = Some(own.map_or_else(|| ident.to_string(), str::to_owned));
                    text = format!("{text}{glue}{ident}");
                    named = Some(ident);
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => brings = None,
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    use_tree(&inner, &text, place, source);
                    named = None;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if let Some(ident) = named {
            push(source, text, ident, place);
            source.mentions.last_mut().expect("it was just pushed").brings = brings;
        }
    }
}

fn function(tokens: &[TokenTree], source: &mut Source) {
    let Some(TokenTree::Ident(name)) = tokens.get(1) else { return };
    for token in &tokens[2..] {
        if is_punct(token, ';') {
            return;
        }
        if let TokenTree::Group(group) = token
            && group.delimiter() == Delimiter::Brace
        {
            let line = tokens[0].span().start().line;
            let length = group.span_close().end().line - line + 1;
            source.functions.push(Function { name: name.to_string(), line, length });
            return;
        }
    }
}

/// Notes the bare `_ =>` arms of a match whose other arms name variants by a path.
fn match_arms(tokens: &[TokenTree], place: Place, source: &mut Source) {
    let body = tokens.iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => None,
    });
    let Some(body) = body.filter(|_| !place.in_test) else { return };
    let body: Vec<TokenTree> = body.into_iter().collect();
    let (mut over_enum, mut bare) = (false, Vec::new());
    let mut pattern = 0;
    let mut at = 0;
    while at < body.len() {
        if !(is_punct(&body[at], '=') && body.get(at + 1).is_some_and(|next| is_punct(next, '>'))) {
            at += 1;
            continue;
        }
        over_enum |= body[pattern..at].windows(2).any(|pair| is_punct(&pair[0], ':') && is_punct(&pair[1], ':'));
        if let [TokenTree::Ident(ident)] = &body[pattern..at]
            && ident == "_"
        {
            bare.push(ident.span().start().line);
        }
        at = arm_end(&body, at + 2);
        pattern = at;
    }
    if over_enum {
        source.wildcards.extend(bare);
    }
}

/// Where the arm whose expression begins here ends: after its block, or after the next comma.
fn arm_end(body: &[TokenTree], mut at: usize) -> usize {
    if let Some(TokenTree::Group(group)) = body.get(at)
        && group.delimiter() == Delimiter::Brace
    {
        let comma = body.get(at + 1).is_some_and(|next| is_punct(next, ','));
        return at + 1 + usize::from(comma);
    }
    while at < body.len() && !is_punct(&body[at], ',') {
        at += 1;
    }
    at + 1
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn is_ident(token: &TokenTree, wanted: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
use a::{b, c::{d as e, f::*}};
fn long(x: [u8; 3]) -> u8 {
    // x.comment()
    x.first().unwrap();
    assert_eq!(std::env::var("Y::z"), crate::up());
    match x { Kind::One => 1, Kind::Two { a } => { 2 } Kind::Three => f(|_| 3), _ => 4 };
    match x { 1 => { 1 } _ => 2 }
}
#[cfg(test)]
mod tests {
    #[test]
    #[ignore = "why"]
    fn law() { tokio::time::sleep(1).await.unwrap(); }
}
struct After(crate::After);
"#;

    #[test]
    fn names_are_found_in_uses_macros_and_methods_but_not_in_text() {
        let source = parse("src/x.rs", SAMPLE);
        let found = |text: &str| source.mentions.iter().find(|mention| mention.text == text);
        for text in ["a::b", "a::c::d", "a::c::f", ".unwrap", "std::env::var", "crate::up", "assert_eq!", "#[ignore]"] {
            assert!(found(text).is_some(), "{text}");
        }
        assert!(found(".comment").is_none() && found("Y::z").is_none(), "comments and strings do not count");
        let brought = ["a::b", "a::c::d", "a::c::f", "crate::up"].map(|text| found(text)?.brings.as_deref());
        assert_eq!(brought, [Some("b"), Some("e"), None, None]);
        assert_eq!(found("std::env::var").expect("it is there").line, 6);
    }

    #[test]
    fn code_of_tests_is_told_from_product_code() {
        let source = parse("src/x.rs", SAMPLE);
        let in_test = |text: &str| -> Vec<bool> {
            source.mentions.iter().filter(|m| m.text == text).map(|m| m.in_test).collect()
        };
        assert_eq!(in_test(".unwrap"), [false, true]);
        assert_eq!(in_test("tokio::time::sleep"), [true]);
        assert_eq!(in_test("crate::After"), [false]);
        assert_eq!(source.test_lines, [(10, 15)]);
    }

    #[test]
    fn lengths_and_wildcards_have_their_lines() {
        let source = parse("src/x.rs", SAMPLE);
        assert_eq!((source.functions[0].name.as_str(), source.functions[0].length), ("long", 7));
        assert_eq!(source.wildcards, [7], "the match over numbers may end in a wildcard");
    }
}
