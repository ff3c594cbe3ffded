//! Commands and calls for a shell that answer what a page shows, or do what it does, at the server that the page is
//! from.

use http::{HeaderMap, Request, header};
use serde_json::Value;

use super::view::Section;
use tallystone_domain::shell_word::shell_word;

/// The addresses at which commands reach a server without an option.
const DEFAULT_HOSTS: [&str; 2] = ["127.0.0.1:7450", "localhost:7450"];
const KEY_HINT: &str = "# with your API key in TALLYSTONE_KEY";

/// The server as the caller reached it.
#[derive(Clone, Default)]
pub struct ShellTarget {
    host: String,
    is_https: bool,
    /// Whether calls show a key.
    has_keys: bool,
}

impl ShellTarget {
    /// The server that a request reached.
    pub fn of<B>(request: &Request<B>, has_keys: bool) -> Self {
        let named = |headers: &HeaderMap| headers.get(header::HOST)?.to_str().ok().map(str::to_owned);
        let host = request.uri().authority().map(|host| host.as_str().to_owned()).or_else(|| named(request.headers()));
        let is_https = request.headers().get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
        Self { host: host.unwrap_or_default(), is_https, has_keys }
    }

    /// A command of the program, from the words behind its name.
    pub fn command(&self, words: &str) -> String {
        let host = shell_word(&self.host);
        match self.is_https {
            true => format!("tallystone {words} --server https://{host}"),
            false if self.host.is_empty() || DEFAULT_HOSTS.contains(&&*self.host) => format!("tallystone {words}"),
            false => format!("tallystone {words} --server {host}"),
        }
    }

    /// The command, with a word about the key where calls show one.
    pub fn with_hint(&self, words: &str) -> String {
        let command = self.command(words);
        if self.has_keys { format!("{KEY_HINT}\n{command}") } else { command }
    }

    /// A section with commands, and the call that answers the same.
    pub fn section(&self, commands: &[String], method: &str, body: &Value) -> Section {
        let mut lines: Vec<String> = self.has_keys.then(|| KEY_HINT.to_owned()).into_iter().collect();
        lines.extend(commands.iter().map(|words| self.command(words)));
        let scheme = if self.is_https { "https" } else { "http" };
        let url = shell_word(&format!("{scheme}://{}/{method}", self.host));
        let key = if self.has_keys { "-H \"authorization: Bearer $TALLYSTONE_KEY\" \\\n  " } else { "" };
        let body = shell_word(&body.to_string());
        lines.push(format!("\ncurl -s {url} \\\n  {key}-H 'content-type: application/json' -d {body}"));
        Self::titled(lines.join("\n"))
    }

    /// A section with commands only.
    pub fn section_of_commands(&self, commands: &[String]) -> Section {
        let hint = self.has_keys.then(|| KEY_HINT.to_owned());
        let lines: Vec<String> = hint.into_iter().chain(commands.iter().map(|words| self.command(words))).collect();
        Self::titled(lines.join("\n"))
    }

    fn titled(code: String) -> Section {
        Section { title: "The same from a shell".to_owned(), code, ..Section::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(host: &str, headers: &[(&str, &str)], has_keys: bool) -> ShellTarget {
        let request = Request::builder().uri("/console/").header(header::HOST, host);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        ShellTarget::of(&request.body(()).expect("a request"), has_keys)
    }

    #[test]
    fn commands_name_the_server_of_the_page_unless_it_is_the_default() {
        let commands = [("localhost:7450", &[][..]), ("db:7450", &[]), ("db", &[("x-forwarded-proto", "https")])]
            .map(|(host, headers)| target(host, headers, false).command("status"));
        assert_eq!(
            commands,
            ["tallystone status", "tallystone status --server db:7450", "tallystone status --server https://db"]
        );
    }

    #[test]
    fn calls_have_a_place_for_the_key_where_calls_show_one() {
        let [open, keyed] = [false, true]
            .map(|has_keys| target("db:7450", &[], has_keys).section(&["status".to_owned()], "a.B/C", &json!({})).code);
        assert_eq!(
            open,
            "tallystone status --server db:7450\n\ncurl -s http://db:7450/a.B/C \\\n  -H 'content-type: application/json' -d '{}'"
        );
        assert!(keyed.starts_with("# with your API key in TALLYSTONE_KEY\ntallystone status"), "{keyed}");
        assert!(keyed.contains("\\\n  -H \"authorization: Bearer $TALLYSTONE_KEY\" \\\n  -H"), "{keyed}");
    }
}
