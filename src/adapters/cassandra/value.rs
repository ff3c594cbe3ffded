//! Column values, and conversions of tuples to bound values and of rows to tuples.

use uuid::Uuid;

/// The value of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum CqlValue {
    Null,
    /// CQL `bigint`, 64 bits.
    BigInt(i64),
    /// CQL `int`, 32 bits.
    Int(i32),
    /// CQL `boolean`.
    Bool(bool),
    Text(String),
    Blob(Vec<u8>),
    Uuid([u8; 16]),
}

impl CqlValue {
    /// Returns the bytes of the value on the wire, its length field included.
    pub fn size(&self) -> usize {
        const OVERHEAD_BYTES: usize = 4;
        OVERHEAD_BYTES
            + match self {
                Self::Null => 0,
                Self::Bool(_) => 1,
                Self::Int(_) => 4,
                Self::BigInt(_) => 8,
                Self::Text(text) => text.len(),
                Self::Blob(bytes) => bytes.len(),
                Self::Uuid(bytes) => bytes.len(),
            }
    }
}

/// The columns of a row, in the order of the SELECT.
pub type CqlRow = Vec<CqlValue>;

/// Values that bind to the placeholders of a statement, in order.
pub trait Bind {
    /// Converts to the bound values.
    fn bind(self) -> Vec<CqlValue>;
}

/// A typed row.
pub trait FromRow: Sized {
    /// Converts a row; none if a column's number or type does not match.
    fn from_row(row: CqlRow) -> Option<Self>;
}

/// A typed value.
pub trait FromValue: Sized {
    /// Converts a value; none if its type does not match.
    fn from_value(value: CqlValue) -> Option<Self>;
}

macro_rules! of_type {
    ($type:ty, $kind:ident) => {
        impl From<$type> for CqlValue {
            fn from(value: $type) -> Self {
                Self::$kind(value)
            }
        }

        impl FromValue for $type {
            fn from_value(value: CqlValue) -> Option<Self> {
                match value {
                    CqlValue::$kind(value) => Some(value),
                    _ => None, // null, or of another type
                }
            }
        }
    };
}

of_type!(i64, BigInt);
of_type!(i32, Int);
of_type!(bool, Bool);
of_type!(String, Text);
of_type!(Vec<u8>, Blob);

impl From<&str> for CqlValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&String> for CqlValue {
    fn from(value: &String) -> Self {
        Self::Text(value.clone())
    }
}

impl From<&Vec<u8>> for CqlValue {
    fn from(value: &Vec<u8>) -> Self {
        Self::Blob(value.clone())
    }
}

impl From<Uuid> for CqlValue {
    fn from(value: Uuid) -> Self {
        Self::Uuid(value.into_bytes())
    }
}

impl FromValue for Uuid {
    fn from_value(value: CqlValue) -> Option<Self> {
        match value {
            CqlValue::Uuid(bytes) => Some(Self::from_bytes(bytes)),
            _ => None, // null, or of another type
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: CqlValue) -> Option<Self> {
        match value {
            CqlValue::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl Bind for () {
    fn bind(self) -> Vec<CqlValue> {
        Vec::new()
    }
}

impl Bind for Vec<CqlValue> {
    fn bind(self) -> Vec<CqlValue> {
        self
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: Into<CqlValue>),+> Bind for ($($name,)+) {
            #[allow(non_snake_case, reason = "a tuple's parts are named like their types")]
            fn bind(self) -> Vec<CqlValue> {
                let ($($name,)+) = self;
                vec![$($name.into()),+]
            }
        }

        impl<$($name: FromValue),+> FromRow for ($($name,)+) {
            fn from_row(row: CqlRow) -> Option<Self> {
                let mut columns = row.into_iter();
                let tuple = ($($name::from_value(columns.next()?)?,)+);
                columns.next().is_none().then_some(tuple)
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_that_is_bound_comes_back_from_its_row() {
        let tuple = (7_i64, -1_i32, "name", vec![1_u8, 2], true);
        type Read = (i64, i32, String, Vec<u8>, Option<bool>);
        let read = Read::from_row(tuple.bind()).expect("the row has the tuple's types");
        assert_eq!(read, (7, -1, "name".to_owned(), vec![1, 2], Some(true)));
    }

    #[test]
    fn a_row_of_another_shape_is_none_of_the_type() {
        assert_eq!(<(i64,)>::from_row(vec![CqlValue::Int(1)]), None);
        assert_eq!(<(i64,)>::from_row(vec![CqlValue::Null]), None);
        assert_eq!(<(Option<i64>,)>::from_row(vec![CqlValue::Null]), Some((None,)));
        assert_eq!(<(i64,)>::from_row(vec![]), None);
        assert_eq!(<(i64,)>::from_row((1_i64, 2_i64).bind()), None, "a column too many");
    }
}
