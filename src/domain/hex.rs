//! Bytes as lower-case hexadecimal digits. Only one text stands for the same bytes, so texts may be compared.

/// The digits of bytes, two for each.
pub fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads exactly so many bytes. None if the text has another length, or another byte than a lower-case digit.
pub fn hex_bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = (value_of(pair[0])? << 4) | value_of(pair[1])?;
    }
    Some(bytes)
}

fn value_of(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None, // no other byte is a lower-case digit
    }
}
