//! Characters that are not seen themselves: the console and the command line show them by their numbers.
//!
//! Foreign text with them could look like another text, or change what a terminal shows. There is one rule for both, so
//! that a name reads the same wherever it is shown.

/// Whether a character is not seen itself: a control character, line breaks and tabs included; one that changes the
/// order of others by the Unicode bidirectional algorithm (UAX #9); or one that takes no room or breaks a line (format
/// characters, fillers and separators). The joiners U+200C and U+200D are parts of words and emoji, and stay.
pub fn is_unseen(letter: char) -> bool {
    let is_bidi =
        matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let takes_no_room = matches!(
        letter,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180e}'
            | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    );
    let breaks_lines = matches!(letter, '\u{2028}' | '\u{2029}');
    is_bidi || takes_no_room || breaks_lines || letter.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sees_is_unseen_and_letters_marks_and_joined_emoji_are_not() {
        for unseen in "\u{200b}\u{feff}\u{ad}\u{2028}\u{2029}\u{2060}\u{202e}\u{3164}\u{e0041}\u{9b}\0\n\t".chars() {
            assert!(is_unseen(unseen), "{}", unseen.escape_unicode());
        }
        for seen in "a é e\u{301} \u{200d}\u{200c}\u{fe0f} 👩\u{200d}🚀 한 ـ \u{a0}".chars() {
            assert!(!is_unseen(seen), "{}", seen.escape_unicode());
        }
    }
}
