//! The text that INFO answers: lines of the form `name:value`.

/// The value of a field.
pub(super) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "# Server\r\nredis_version:7.0.15\r\nused_memory_human:1M\r\nused_memory:12\r\n";
        assert_eq!((field(info, "used_memory"), field(info, "redis_version")), (Some("12"), Some("7.0.15")));
        assert_eq!((field(info, "used"), field(info, "memory")), (None, None));
    }
}
