//! From text to plans.

use std::sync::Arc;

use super::plan::{Bound, Condition, Plan, Range, Reading, Term, Writing, WritingKind};
use super::{Column, Datum, Kind, Schema, Table, Type};

/// What a change of the schema asks for.
pub enum Definition {
    Create(Table),
    Drop(String),
    AddColumn(String, String, Type, bool),
}

type Parsed<T> = Result<T, String>;

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Word(String),
    Number(i64),
    Quoted(String),
    Sign(&'static str),
}

const SIGNS: [&str; 12] = ["<=", ">=", "(", ")", ",", "=", "<", ">", "?", ".", "{", ":"];

fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let used = if let Some(quoted) = rest.strip_prefix('\'') {
            let end = quoted.find('\'').ok_or("a string without an end")?;
            found.push(Token::Quoted(quoted[..end].to_owned()));
            end + 2
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            found.push(Token::Sign(sign));
            sign.len()
        } else {
            let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
            let end = rest.find(|character| !is_word(character)).unwrap_or(rest.len());
            if end == 0 {
                return Err(format!("cannot read {rest:?}"));
            }
            let word = &rest[..end];
            found.push(word.parse().map_or_else(|_| Token::Word(word.to_owned()), Token::Number));
            end
        };
        rest = rest[used..].trim_start();
    }
    Ok(found)
}

/// Reads tokens from left to right and counts the places of values.
struct Cursor {
    tokens: Vec<Token>,
    at: usize,
    binds: usize,
}

impl Cursor {
    fn new(text: &str) -> Parsed<Self> {
        Ok(Self { tokens: tokens(text)?, at: 0, binds: 0 })
    }

    /// Takes these words if they come next.
    fn takes(&mut self, words: &str) -> bool {
        let words: Vec<&str> = words.split(' ').collect();
        let next = self.tokens.get(self.at..self.at + words.len()).unwrap_or_default();
        let is_next = next.len() == words.len()
            && next.iter().zip(&words).all(|(token, word)| match token {
                Token::Word(have) => have.eq_ignore_ascii_case(word),
                Token::Sign(have) => have == word,
                Token::Number(_) | Token::Quoted(_) => false,
            });
        if is_next {
            self.at += words.len();
        }
        is_next
    }

    fn expect(&mut self, words: &str) -> Parsed<()> {
        match self.takes(words) {
            true => Ok(()),
            false => Err(format!("{words} expected at {:?}", self.tokens.get(self.at))),
        }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word.to_ascii_lowercase())
            }
            other => Err(format!("a name expected at {other:?}")),
        }
    }

    /// A table, with or without its keyspace.
    fn table_name(&mut self) -> Parsed<String> {
        let first = self.name()?;
        if self.takes(".") { self.name() } else { Ok(first) }
    }

    fn table(&mut self, schema: &Schema) -> Parsed<Arc<Table>> {
        let name = self.table_name()?;
        schema.get(name.as_str()).cloned().ok_or_else(|| format!("there is no table {name}"))
    }

    fn term(&mut self) -> Parsed<Term> {
        if self.takes("?") {
            self.binds += 1;
            return Ok(Term::Bind(self.binds - 1));
        }
        let literal = match self.tokens.get(self.at) {
            Some(Token::Number(number)) => Datum::Int(*number),
            Some(Token::Quoted(text)) => Datum::Text(text.as_str().into()),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("null") => Datum::Null,
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("true") => Datum::Bool(true),
            Some(Token::Word(word)) if word.eq_ignore_ascii_case("false") => Datum::Bool(false),
            other => return Err(format!("a value expected at {other:?}")),
        };
        self.at += 1;
        Ok(Term::Literal(literal))
    }

    /// Names or terms in brackets.
    fn listed<T>(&mut self, one: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect("(")?;
        let mut all = vec![one(self)?];
        while self.takes(",") {
            all.push(one(self)?);
        }
        self.expect(")")?;
        Ok(all)
    }

    /// What follows USING; nothing if nothing does.
    fn using(&mut self) -> Parsed<Option<Term>> {
        let mut timestamp = None;
        if self.takes("using") {
            loop {
                if self.takes("timestamp") {
                    timestamp = Some(self.term()?);
                } else {
                    self.expect("ttl")?;
                    self.term()?;
                }
                if !self.takes("and") {
                    break;
                }
            }
        }
        Ok(timestamp)
    }

    fn end(&self) -> Parsed<()> {
        match self.tokens.get(self.at) {
            None => Ok(()),
            Some(more) => Err(format!("the end expected at {more:?}")),
        }
    }
}

fn type_of(name: &str) -> Parsed<Type> {
    match name {
        "bigint" => Ok(Type::BigInt),
        "int" => Ok(Type::Int),
        "boolean" => Ok(Type::Bool),
        "text" => Ok(Type::Text),
        "blob" => Ok(Type::Blob),
        "uuid" => Ok(Type::Uuid),
        other => Err(format!("the type {other} is not known")),
    }
}

/// Reads a change of the schema.
pub fn definition(text: &str) -> Parsed<Definition> {
    let mut cursor = Cursor::new(&text.replace('}', " "))?;
    if cursor.takes("drop table") {
        cursor.takes("if exists");
        return Ok(Definition::Drop(cursor.table_name()?));
    }
    if cursor.takes("alter table") {
        let table = cursor.table_name()?;
        cursor.expect("add")?;
        cursor.takes("if not exists");
        let (name, column_type) = (cursor.name()?, type_of(&cursor.name()?)?);
        let is_static = cursor.takes("static");
        cursor.end()?;
        return Ok(Definition::AddColumn(table, name, column_type, is_static));
    }
    cursor.expect("create table")?;
    cursor.takes("if not exists");
    let name = cursor.table_name()?;
    cursor.expect("(")?;
    let mut columns: Vec<(String, Type, bool)> = Vec::new();
    let (mut partition, mut clustering) = (Vec::new(), Vec::new());
    loop {
        if cursor.takes("primary key") {
            cursor.expect("(")?;
            partition = if cursor.tokens.get(cursor.at) == Some(&Token::Sign("(")) {
                cursor.listed(Cursor::name)?
            } else {
                vec![cursor.name()?]
            };
            while cursor.takes(",") {
                clustering.push(cursor.name()?);
            }
            cursor.expect(")")?;
        } else {
            let (column, column_type) = (cursor.name()?, type_of(&cursor.name()?)?);
            let is_static = cursor.takes("static");
            if cursor.takes("primary key") {
                partition.push(column.clone());
            }
            columns.push((column, column_type, is_static));
        }
        if !cursor.takes(",") {
            break;
        }
    }
    cursor.expect(")")?;
    let descending = cursor.takes("with clustering order by") && {
        cursor.expect("(")?;
        cursor.name()?;
        cursor.takes("desc")
    };
    let (mut statics, mut regulars) = (0, 0);
    let next = |count: &mut usize| {
        *count += 1;
        *count - 1
    };
    let columns = columns.into_iter().map(|(name, column_type, is_static)| {
        let kind = if let Some(at) = partition.iter().position(|key| *key == name) {
            Kind::Partition(at)
        } else if let Some(at) = clustering.iter().position(|key| *key == name) {
            Kind::Clustering(at)
        } else if is_static {
            Kind::Static(next(&mut statics))
        } else {
            Kind::Regular(next(&mut regulars))
        };
        Column { name, column_type, kind }
    });
    Ok(Definition::Create(Table { name: name.as_str().into(), columns: columns.collect(), descending }))
}

/// Reads a statement on the tables of a schema.
pub fn statement(text: &str, schema: &Schema) -> Parsed<Plan> {
    let mut cursor = Cursor::new(text)?;
    let plan = if cursor.takes("insert into") {
        insert(&mut cursor, schema)?
    } else if cursor.takes("update") {
        update(&mut cursor, schema)?
    } else if cursor.takes("delete from") {
        delete(&mut cursor, schema)?
    } else {
        cursor.expect("select")?;
        select(&mut cursor, schema)?
    };
    cursor.end()?;
    Ok(plan)
}

fn insert(cursor: &mut Cursor, schema: &Schema) -> Parsed<Plan> {
    let table = cursor.table(schema)?;
    let names = cursor.listed(Cursor::name)?;
    cursor.expect("values")?;
    let values = cursor.listed(Cursor::term)?;
    let condition = if cursor.takes("if not exists") { Condition::Absent } else { Condition::None };
    let timestamp = cursor.using()?;
    if names.len() != values.len() {
        return Err("as many values as columns are expected".to_owned());
    }
    let set = names.into_iter().zip(values).collect();
    writing(table, WritingKind::Insert, set, timestamp, condition)
}

fn update(cursor: &mut Cursor, schema: &Schema) -> Parsed<Plan> {
    let table = cursor.table(schema)?;
    let timestamp = cursor.using()?;
    cursor.expect("set")?;
    let mut set = vec![equality(cursor)?];
    while cursor.takes(",") {
        set.push(equality(cursor)?);
    }
    set.extend(equalities(cursor)?);
    let condition = condition(cursor)?;
    writing(table, WritingKind::Update, set, timestamp, condition)
}

fn delete(cursor: &mut Cursor, schema: &Schema) -> Parsed<Plan> {
    let table = cursor.table(schema)?;
    let timestamp = cursor.using()?;
    let set = equalities(cursor)?;
    let condition = condition(cursor)?;
    writing(table, WritingKind::Delete, set, timestamp, condition)
}

fn equality(cursor: &mut Cursor) -> Parsed<(String, Term)> {
    let name = cursor.name()?;
    cursor.expect("=")?;
    Ok((name, cursor.term()?))
}

/// WHERE with equalities only.
fn equalities(cursor: &mut Cursor) -> Parsed<Vec<(String, Term)>> {
    cursor.expect("where")?;
    let mut all = vec![equality(cursor)?];
    while cursor.takes("and") {
        all.push(equality(cursor)?);
    }
    Ok(all)
}

fn condition(cursor: &mut Cursor) -> Parsed<Condition> {
    if !cursor.takes("if") {
        return Ok(Condition::None);
    }
    if cursor.takes("exists") {
        return Ok(Condition::Present);
    }
    let mut all = vec![equality(cursor)?];
    while cursor.takes("and") {
        all.push(equality(cursor)?);
    }
    Ok(Condition::Equal(all))
}

fn writing(
    table: Arc<Table>,
    kind: WritingKind,
    set: Vec<(String, Term)>,
    timestamp: Option<Term>,
    condition: Condition,
) -> Parsed<Plan> {
    let mut placed = Vec::with_capacity(set.len());
    for (name, term) in set {
        placed.push((table.column(&name)?.kind, term));
    }
    let keys = placed.iter().filter(|(kind, _)| matches!(kind, Kind::Partition(_))).count();
    if keys != table.count(|kind| matches!(kind, Kind::Partition(_))) {
        return Err(format!("a write of {} names a part of its key", table.name));
    }
    Ok(Plan::Write(Writing { table, kind, set: placed, timestamp, condition }))
}

fn select(cursor: &mut Cursor, schema: &Schema) -> Parsed<Plan> {
    let distinct = cursor.takes("distinct");
    let mut names = vec![cursor.name()?];
    while cursor.takes(",") {
        names.push(cursor.name()?);
    }
    cursor.expect("from")?;
    let table = cursor.table(schema)?;
    let mut columns = Vec::with_capacity(names.len());
    for name in &names {
        let column = table.column(name)?;
        columns.push((column.kind, column.column_type));
    }
    let mut key = vec![None; table.count(|kind| matches!(kind, Kind::Partition(_)))];
    let mut range = Range::default();
    if cursor.takes("where") {
        loop {
            relation(cursor, &table, &mut key, &mut range)?;
            if !cursor.takes("and") {
                break;
            }
        }
    }
    let mut descending = table.descending;
    if cursor.takes("order by") {
        cursor.name()?;
        descending = cursor.takes("desc");
        cursor.takes("asc");
        while cursor.takes(",") {
            cursor.name()?;
            let _ = cursor.takes("desc") || cursor.takes("asc");
        }
    }
    let limit = if cursor.takes("limit") { Some(cursor.term()?) } else { None };
    let key = if key.iter().all(Option::is_none) { None } else { Some(key.into_iter().flatten().collect()) };
    Ok(Plan::Read(Reading { table, columns, distinct, key, range, descending, limit }))
}

/// One relation of a WHERE: a part of the key, or of the range of clustering keys.
fn relation(cursor: &mut Cursor, table: &Table, key: &mut [Option<Term>], range: &mut Range) -> Parsed<()> {
    let is_tuple = cursor.tokens.get(cursor.at) == Some(&Token::Sign("("));
    let names = if is_tuple { cursor.listed(Cursor::name)? } else { vec![cursor.name()?] };
    let signs = ["<=", ">=", "=", "<", ">"];
    let sign = signs.into_iter().find(|sign| cursor.takes(sign)).ok_or("a relation expected")?;
    let terms = if is_tuple { cursor.listed(Cursor::term)? } else { vec![cursor.term()?] };
    let kind = table.column(&names[0])?.kind;
    match (kind, sign) {
        (Kind::Partition(at), "=") => key[at] = terms.into_iter().next(),
        (Kind::Clustering(_), "=") => range.equal.extend(terms),
        (Kind::Clustering(_), ">") => range.low = Some(Bound { terms, inclusive: false }),
        (Kind::Clustering(_), ">=") => range.low = Some(Bound { terms, inclusive: true }),
        (Kind::Clustering(_), "<") => range.high = Some(Bound { terms, inclusive: false }),
        (Kind::Clustering(_), "<=") => range.high = Some(Bound { terms, inclusive: true }),
        (kind, sign) => return Err(format!("{names:?} {sign} of {kind:?} is not known")),
    }
    Ok(())
}
