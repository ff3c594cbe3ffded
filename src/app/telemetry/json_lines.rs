//! Log lines in JSON, as the library writes them, with the names of targets that users know.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::log_targets::{UserTarget, user_target};

/// Writes lines in the form of the library.
pub struct JsonLines(pub Format<Json>);

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let target = event.metadata().target();
        let Some(name) = user_target(target) else { return self.0.format_event(context, writer, event) };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        write_renamed(&mut writer, &line, target, name)
    }
}

/// Writes a line with another name for its target. Names of targets have nothing that JSON escapes, and quotes within a
/// text are escaped, so what is found is an entry. It comes behind the fields of the line.
fn write_renamed(writer: &mut Writer<'_>, line: &str, target: &str, name: UserTarget<'_>) -> fmt::Result {
    let entry = format!("\"target\":\"{target}\"");
    match line.rsplit_once(&entry) {
        Some((before, behind)) => write!(writer, "{before}\"target\":\"{name}\"{behind}"),
        None => writer.write_str(line),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::fmt::{MakeWriter, layer};
    use tracing_subscriber::prelude::*;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    /// The lines of what is logged meanwhile.
    fn lines(log: impl FnOnce()) -> Vec<serde_json::Value> {
        let kept = Kept::default();
        let lines = layer().with_writer(kept.clone()).json().flatten_event(true).map_event_format(JsonLines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let text = String::from_utf8(kept.0.lock().clone()).expect("a text");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
    }

    #[test]
    fn a_line_has_the_name_of_its_target_that_users_know() {
        let lines = lines(|| {
            tracing::warn!(target: "tallystone_redis::reader", bytes = 3, "a reply is late");
            tracing::info!(target: "tallystone_cli", "done");
            tracing::info!(target: "tallystone::repeated", "as it is");
            tracing::info!("of this module");
        });
        let targets: Vec<_> = lines.iter().map(|line| line["target"].as_str().expect("a text")).collect();
        let own = user_target(module_path!()).map_or_else(|| module_path!().to_owned(), |name| name.to_string());
        assert_eq!(
            targets,
            ["tallystone::adapters::redis::reader", "tallystone::app::cli", "tallystone::repeated", &*own]
        );
        assert_eq!(own, "tallystone::app::telemetry::json_lines::tests");
        let keys: Vec<_> = lines[0].as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys, ["timestamp", "level", "message", "bytes", "target"]);
        assert_eq!((&lines[0]["message"], &lines[0]["bytes"]), (&"a reply is late".into(), &3.into()));
    }

    #[test]
    fn a_text_that_looks_like_a_target_stays() {
        let text = r#"{"target":"tallystone_engine"}"#;
        let lines = lines(|| {
            tracing::info!(target: "tallystone_engine", field = text, "\"target\":\"tallystone_engine\"");
        });
        assert_eq!(lines[0]["target"], "tallystone::engine");
        assert_eq!(lines[0]["field"], text);
        assert_eq!(lines[0]["message"], "\"target\":\"tallystone_engine\"");
    }
}
