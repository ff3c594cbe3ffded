//! A command as its words: the name and the arguments.

use bytes::{BufMut, Bytes, BytesMut};

/// A command. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisCommand {
    words: Vec<Bytes>,
}

impl RedisCommand {
    /// A command without arguments.
    pub fn new(name: &'static str) -> Self {
        Self { words: vec![Bytes::from_static(name.as_bytes())] }
    }

    /// A command with arguments that it takes over.
    pub fn with(name: &'static str, arguments: Vec<Vec<u8>>) -> Self {
        let name = Bytes::from_static(name.as_bytes());
        Self { words: std::iter::once(name).chain(arguments.into_iter().map(Bytes::from)).collect() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.words.push(Bytes::copy_from_slice(arg.as_ref()));
        self
    }

    /// Adds a number as an argument.
    #[must_use]
    pub fn int(mut self, arg: i64) -> Self {
        self.words.push(Bytes::from(arg.to_string()));
        self
    }

    /// Calls a function that may write.
    pub fn fcall<K: AsRef<[u8]>, A: AsRef<[u8]>>(function: &str, keys: &[K], args: &[A]) -> Self {
        Self::of_function("FCALL", function, keys, args)
    }

    /// Calls a function that only reads.
    pub fn fcall_ro<K: AsRef<[u8]>, A: AsRef<[u8]>>(function: &str, keys: &[K], args: &[A]) -> Self {
        Self::of_function("FCALL_RO", function, keys, args)
    }

    /// All words share one allocation, because a call of many items has many of them.
    fn of_function<K: AsRef<[u8]>, A: AsRef<[u8]>>(verb: &'static str, function: &str, keys: &[K], args: &[A]) -> Self {
        let count = keys.len().to_string();
        let (keys, args) = (keys.iter().map(AsRef::as_ref), args.iter().map(AsRef::as_ref));
        let rest = [function.as_bytes(), count.as_bytes()].into_iter().chain(keys).chain(args);
        let rest: Vec<&[u8]> = rest.collect();
        let mut all = BytesMut::with_capacity(rest.iter().map(|word| word.len()).sum());
        let mut words = Vec::with_capacity(rest.len() + 1);
        words.push(Bytes::from_static(verb.as_bytes()));
        for word in &rest {
            all.put_slice(word);
        }
        let mut all = all.freeze();
        words.extend(rest.iter().map(|word| all.split_to(word.len())));
        Self { words }
    }

    /// The words, the name first.
    pub(super) fn words(&self) -> &[Bytes] {
        &self.words
    }

    /// The bytes of its words.
    pub(super) fn size(&self) -> usize {
        self.words.iter().map(Bytes::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_gets_the_number_of_its_keys() {
        let command = RedisCommand::fcall("enq", &["{q}m", "{q}p"], &[&b"\x00\r\n"[..], b""]);
        let words: Vec<&[u8]> = command.words().iter().map(AsRef::as_ref).collect();
        assert_eq!(words, [&b"FCALL"[..], b"enq", b"2", b"{q}m", b"{q}p", b"\x00\r\n", b""]);
        assert_eq!(command.size(), words.iter().map(|word| word.len()).sum::<usize>());
    }

    #[test]
    fn words_are_added_in_order() {
        let command = RedisCommand::new("SET").arg("key").int(-7);
        assert_eq!(command.words(), ["SET", "key", "-7"]);
    }
}
