//! Words of commands that people paste into a shell.

/// A word as a shell takes it: quoted, unless it needs no quotes.
pub fn shell_word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@%+=,-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_more_than_one_word() {
        assert_eq!(["odd/name:50", "a b", "it's", ""].map(shell_word), ["odd/name:50", "'a b'", r"'it'\''s'", "''"]);
    }
}
