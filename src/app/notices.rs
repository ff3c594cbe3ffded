//! Lines for people beside the data: what a server says on stdout, what a command says on stderr.
//!
//! Data goes through `cli::output`, where a write that fails is a failure. A line here is said and forgotten: whoever
//! listened may have gone (`tallystone dev | head -1`), and that must not end a server that still holds a store.
//! Invariant: nothing here panics or fails, and no control character of somebody's text reaches the terminal.

use std::borrow::Cow;
use std::io::{self, Write};

/// Says a line on stdout.
pub fn print_line(text: &str) {
    put(io::stdout().lock(), format!("{}\n", visible(text)));
}

/// Says a line on stderr.
pub fn print_notice(text: &str) {
    put(io::stderr().lock(), format!("{}\n", visible(text)));
}

/// Asks on stderr; the answer follows on the same line.
pub fn print_prompt(text: &str) {
    put(io::stderr().lock(), format!("{} ", visible(text)));
}

/// A text whose control characters are written out, except the ends of lines.
pub fn visible(text: &str) -> Cow<'_, str> {
    written_out(text, |character| character.is_control() && character != '\n')
}

/// The same for what stands on a line with other things: the ends of lines are written out too, so that nobody's text looks
/// like a line of ours.
pub fn single_line(text: &str) -> Cow<'_, str> {
    written_out(text, char::is_control)
}

fn written_out(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if hidden(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// A word as a shell takes it, for commands that people copy.
pub fn shell_quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+@%:".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

fn put(mut to: impl Write, line: String) {
    // Nobody is left to tell: the reader has gone, or cannot take more.
    let _ = to.write_all(line.as_bytes()).and_then(|()| to.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_a_shell_would_take_apart_is_quoted() {
        for plain in ["0192f5a0-1c2b", "/opt/tally@1", "a:b"] {
            assert_eq!(shell_quoted(plain), plain);
        }
        for (word, quoted) in
            [("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$(x)", "'$(x)'"), ("a=b", "'a=b'")]
        {
            assert_eq!(shell_quoted(word), quoted);
        }
    }

    #[test]
    fn control_characters_are_shown_and_not_sent() {
        assert!(matches!(visible("plain, ä and\ntwo lines"), Cow::Borrowed(_)));
        assert_eq!(visible("a\u{1b}[31mred\u{7}\tb\u{9b}"), "a\\u{1b}[31mred\\u{7}\\tb\\u{9b}");
        assert_eq!(single_line("a\nb\r\u{85}c"), "a\\nb\\r\\u{85}c");
    }
}
