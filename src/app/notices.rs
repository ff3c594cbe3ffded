//! Messages for people: what a server prints on stdout and a command on stderr, in addition to data.
//!
//! Data goes through `cli::output`, where a failed write is a failure. A failed write of a message here is ignored: the
//! reader may have exited (`tallystone dev | head -1`), and that must not stop a server with an open store. Invariant:
//! nothing here panics or fails, and no character of untrusted text reaches the terminal that is not seen itself.

use std::borrow::Cow;
use std::io::{self, Write};

use tallystone_api::unseen::is_unseen;

/// Prints a line on stdout.
pub fn print_line(text: &str) {
    put(io::stdout().lock(), format!("{}\n", visible(text)));
}

/// Prints a line on stderr.
pub fn print_notice(text: &str) {
    put(io::stderr().lock(), format!("{}\n", visible(text)));
}

/// Prints a question on stderr; the answer follows on the same line.
pub fn print_prompt(text: &str) {
    put(io::stderr().lock(), format!("{} ", visible(text)));
}

/// Escapes the characters of a text that are not seen themselves, except line breaks.
pub fn visible(text: &str) -> Cow<'_, str> {
    written_out(text, |character| is_unseen(character) && character != '\n')
}

/// Escapes the characters of a text within a line that are not seen themselves, including line breaks, so that foreign
/// text cannot imitate our lines.
pub fn single_line(text: &str) -> Cow<'_, str> {
    written_out(text, is_unseen)
}

/// The same, cut to a number of characters; a cut text ends with a mark.
pub fn cut_line(text: &str, most: usize) -> String {
    let text = single_line(text);
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.into_owned(),
    }
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

/// Quotes a word for a shell, in commands for copying.
pub fn shell_quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+@%:".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

fn put(mut to: impl Write, line: String) {
    // Ignored: the reader is gone, or cannot take more.
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

    #[test]
    fn characters_that_change_the_order_of_others_are_shown_by_their_numbers() {
        assert_eq!(visible("pay\u{202e}lib\u{2066}x\nb"), "pay\\u{202e}lib\\u{2066}x\nb");
        assert_eq!(single_line("\u{61c}a\u{200f}"), "\\u{61c}a\\u{200f}");
    }
}
