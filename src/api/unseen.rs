//! Characters that are not seen themselves: the console and the command line show them by their numbers.
//!
//! Foreign text with them could look like another text, or change what a terminal shows. There is one rule for both, so that a
//! name reads the same wherever it is shown.

/// Whether a character is not seen itself: a control character, line breaks and tabs included, or one that changes the order of
/// others by the Unicode bidirectional algorithm (UAX #9).
pub fn is_unseen(letter: char) -> bool {
    let is_bidi =
        matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_bidi || letter.is_control()
}
