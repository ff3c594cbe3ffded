//! The help of every command, kept as one text, so that a change of the command line is seen.

use std::fs;
use std::path::Path;

use tallystone::app::cli;

use crate::support::golden;

#[test]
fn the_help_of_every_command_is_as_kept() {
    let mut text = String::new();
    let mut command = cli::command().term_width(100);
    command.build();
    print(&mut command, &mut text);
    golden::check("tests/golden/cli/help.txt", &text);
}

fn print(command: &mut clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or("tallystone").to_owned();
    text.push_str(&format!("==== {name}\n{}\n", command.render_long_help()));
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        print(below, text);
    }
}

#[test]
fn the_page_of_the_command_line_names_every_command() {
    let page =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).expect("the page is there");
    for noun in cli::command().get_subcommands() {
        let verbs: Vec<_> =
            noun.get_subcommands().map(|verb| format!("{} {}", noun.get_name(), verb.get_name())).collect();
        let named = if verbs.is_empty() { vec![noun.get_name().to_owned()] } else { verbs };
        for name in named {
            let short = name.rsplit(' ').next().expect("a name has a last word");
            assert!(page.contains(&format!("`{name}")) || page.contains(&format!("`{short}`")), "{name} is not named");
        }
    }
}
