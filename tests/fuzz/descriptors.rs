//! Messages by their descriptors: fields at the edges of their ranges, and wires that no encoder of ours would write.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use super::driver::Rng;

/// All messages of the protocol and of the stores.
pub static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(tallystone::proto::DESCRIPTORS)
        .expect("the descriptors are those that tests/generated keeps")
});

const DEPTH_MAX: usize = 6;
const NUMBERS: &[i64] = &[
    0,
    1,
    2,
    3,
    10,
    60,
    100,
    999,
    1_000,
    1_001,
    10_000,
    86_400,
    65_536,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    -1,
    i64::MAX,
    i64::MIN,
    i64::MAX / 1_000,
    253_402_300_800,
];
const STRINGS: &[&str] =
    &["", "a", "views", "\u{e9}\u{1f600}", "\0", "..", "%", "key:x", "0192f5a0-1c2b-7def-8abc-0123456789ab"];
/// Values that answers gave, for each name of a field.
const HEARD_MAX: usize = 32;

/// Strings that fields are filled with: some by the name of the field, and what answers told.
#[derive(Default)]
pub struct Words {
    by_field: BTreeMap<String, Vec<String>>,
}

impl Words {
    /// Words that a field begins with.
    pub fn with(mut self, field: &str, words: &[&str]) -> Self {
        self.by_field.insert(field.to_owned(), words.iter().map(|&word| word.to_owned()).collect());
        self
    }

    /// Takes in what an answer told; the oldest but for the given ones goes.
    pub fn hear(&mut self, field: &str, word: &str) {
        let known = self.by_field.entry(field.to_owned()).or_default();
        if !known.iter().any(|one| one == word) {
            if known.len() == HEARD_MAX {
                known.remove(HEARD_MAX / 2);
            }
            known.push(word.to_owned());
        }
    }

    fn pick(&self, rng: &mut Rng, field: &str) -> String {
        let plain = field.strip_suffix('s').unwrap_or(field);
        let known = self.by_field.get(field).or_else(|| self.by_field.get(plain));
        match known.filter(|known| !known.is_empty() && !rng.one_in(5)) {
            Some(known) => rng.pick(known).clone(),
            None => match rng.below(8) {
                0 => "x".repeat(*rng.pick(&[63, 64, 65, 127, 128, 129, 255, 256, 257, 5_000])),
                _ => (*rng.pick(STRINGS)).to_owned(),
            },
        }
    }
}

/// How wrong a message may be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Every field has the type that its descriptor says.
    Typed,
    /// Wrong wire types, duplicates, unknown fields, bad UTF-8.
    Wild,
}

/// A random message in its wire form.
pub fn message(rng: &mut Rng, of: &MessageDescriptor, words: &Words, care: Care) -> Vec<u8> {
    let mut wire = Vec::new();
    write_message(rng, of, words, care, 0, &mut wire);
    wire
}

fn write_message(rng: &mut Rng, of: &MessageDescriptor, words: &Words, care: Care, depth: usize, wire: &mut Vec<u8>) {
    match of.full_name() {
        "google.protobuf.Timestamp" if !rng.one_in(4) => return write_near_time(rng, wire),
        "google.protobuf.Duration" if !rng.one_in(4) => return write_short_time(rng, wire),
        _ => {} // every other message has fields that are filled below
    }
    let sparse = 2 + rng.below(3);
    for field in of.fields() {
        let wanted = ["namespace", "counter_name", "queue", "spec", "name", "item"].contains(&field.name());
        if depth > DEPTH_MAX || if wanted { rng.one_in(10) } else { !rng.one_in(sparse) } {
            continue;
        }
        let most = if field.is_list() || field.is_map() { 4 } else { 1 };
        let mut times = 1 + rng.below(most);
        if care == Care::Wild && rng.one_in(40) {
            times += 1 + rng.below(3);
        }
        for _ in 0..times {
            write_field(rng, &field, words, care, depth, wire);
        }
    }
    if care == Care::Wild && rng.one_in(20) {
        let number = 1 + rng.below(2_000);
        write_wrong(rng, number as u32, wire);
    }
}

fn write_field(rng: &mut Rng, field: &FieldDescriptor, words: &Words, care: Care, depth: usize, wire: &mut Vec<u8>) {
    if care == Care::Wild && rng.one_in(60) {
        return write_wrong(rng, field.number(), wire);
    }
    let number = field.number();
    match field.kind() {
        Kind::Message(of) => {
            let mut inner = Vec::new();
            write_message(rng, &of, words, care, depth + 1, &mut inner);
            write_bytes(number, &inner, wire);
        }
        Kind::String if care == Care::Wild && rng.one_in(40) => write_bytes(number, &[0xff, 0xc0, b'a'], wire),
        Kind::String => write_bytes(number, words.pick(rng, field.name()).as_bytes(), wire),
        Kind::Bytes => {
            let length = *rng.pick(&[0, 1, 7, 8, 16, 17, 24, 40, 300]);
            let bytes: Vec<u8> = (0..length).map(|_| rng.next().to_le_bytes()[0]).collect();
            write_bytes(number, &bytes, wire);
        }
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => {
            let value = *rng.pick(&[0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, f64::NAN, f64::INFINITY, 1e9]);
            write_tag(number, 1, wire);
            wire.extend_from_slice(&value.to_le_bytes());
        }
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => {
            write_tag(number, 5, wire);
            wire.extend_from_slice(&(rng.next() as u32).to_le_bytes());
        }
        Kind::Bool => write_number(number, rng.next() & 1, wire),
        Kind::Enum(of) if !rng.one_in(10) => {
            let values: Vec<i32> = of.values().map(|value| value.number()).collect();
            write_number(number, i64::from(*rng.pick(&values)) as u64, wire);
        }
        // The rest are numbers in as many bytes as they need; the casts keep the bits.
        _ => write_number(number, number_near_an_edge(rng) as u64, wire),
    }
}

fn number_near_an_edge(rng: &mut Rng) -> i64 {
    match rng.below(4) {
        0 => rng.next() as i64,
        1 => rng.below(20) as i64,
        _ => rng.pick(NUMBERS).wrapping_add(rng.below(3) as i64 - 1),
    }
}

/// A time within some minutes of this moment, so that it is admitted.
fn write_near_time(rng: &mut Rng, wire: &mut Vec<u8>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    let seconds = now.as_secs() as i64 + rng.below(240) as i64 - 200;
    write_number(1, seconds as u64, wire);
    write_number(2, rng.next() % 1_000_000_000, wire);
}

/// A duration that settings may have.
fn write_short_time(rng: &mut Rng, wire: &mut Vec<u8>) {
    write_number(1, *rng.pick(&[0, 1, 5, 10, 60, 600, 3_600, 86_400, 604_800]), wire);
    if rng.one_in(3) {
        write_number(2, *rng.pick(&[1, 1_000_000, 999_999_999, 1_000_000_000]), wire);
    }
}

/// A field of a type that its descriptor does not say.
fn write_wrong(rng: &mut Rng, number: u32, wire: &mut Vec<u8>) {
    let kind = rng.below(8) as u32;
    write_tag(number, kind, wire);
    for _ in 0..rng.below(12) {
        wire.push(rng.next().to_le_bytes()[0]);
    }
}

fn write_tag(number: u32, kind: u32, wire: &mut Vec<u8>) {
    write_varint(u64::from(number << 3 | kind), wire);
}

fn write_number(number: u32, value: u64, wire: &mut Vec<u8>) {
    write_tag(number, 0, wire);
    write_varint(value, wire);
}

fn write_bytes(number: u32, bytes: &[u8], wire: &mut Vec<u8>) {
    write_tag(number, 2, wire);
    write_varint(bytes.len() as u64, wire);
    wire.extend_from_slice(bytes);
}

fn write_varint(mut value: u64, wire: &mut Vec<u8>) {
    while value >= 0x80 {
        wire.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    wire.push(value.to_le_bytes()[0]);
}
