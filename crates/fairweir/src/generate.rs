//! `fairweir generate`: completions and man pages, generated from the definition of the command line.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::Command;
use fairweir_config::{output, text, uci};

use crate::cli::GROUPS;
use crate::cli::{self, GenerateCommand};
use crate::exit::TABLE;

pub(crate) fn run(command: &GenerateCommand) -> anyhow::Result<()> {
    match command {
        GenerateCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut cli::command(), "fairweir", &mut script);
            Ok(io::stdout().lock().write_all(&script)?)
        }
        GenerateCommand::Uci { file, lan, wan } => {
            let toml = uci::router_toml(file, lan, wan)?.unwrap_or_default();
            Ok(text::stdout().write_all(toml.as_bytes())?)
        }
        GenerateCommand::Man { out } => write_pages(out),
        #[cfg(feature = "evidence")]
        GenerateCommand::Schemas => {
            Ok(text::stdout().write_all(crate::schemas::document().as_bytes())?)
        }
        GenerateCommand::Commands => Ok(text::stdout().write_all(document().as_bytes())?),
    }
}

/// Writes `fairweir.1` and a page for each subcommand, such as `fairweir-isp-add.1`.
fn write_pages(dir: &Path) -> anyhow::Result<()> {
    output::make_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, page) in pages()? {
        let path = dir.join(format!("{name}.1"));
        output::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The name and text of each man page; the page of the whole command is first.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = cli::command();
    // Gives each subcommand its full usage line, such as `fairweir isp add`.
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &[], &mut pages)?;
    Ok(pages)
}

fn add_pages(
    command: &Command,
    above: &[&str],
    pages: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    let path: Vec<&str> = above.iter().copied().chain([command.get_name()]).collect();
    let name = path.join("-");
    let mut page = Vec::new();
    let titled = command.clone().name(name.clone());
    clap_mangen::Man::new(titled).title(name.to_uppercase()).render(&mut page)?;
    // The `extra` section of clap begins with the examples.
    let mut page =
        String::from_utf8_lossy(&page).replace("\n.SH EXTRA\nExamples:\n", "\n.SH EXAMPLES\n");
    page.push_str(&sections(command, &name, above));
    pages.push((name, page.into_bytes()));
    documented(command).try_for_each(|below| add_pages(below, &path, pages))
}

/// The man page sections that clap does not write.
fn sections(command: &Command, name: &str, above: &[&str]) -> String {
    let mut page = String::from(".SH \"EXIT STATUS\"\n");
    for (exit, meaning) in TABLE {
        page.push_str(&entry(&exit.code().to_string(), meaning));
    }
    let files: Vec<(String, String)> = files(command).collect();
    if !files.is_empty() {
        page.push_str(".SH FILES\n");
    }
    for (path, help) in &files {
        page.push_str(&entry(path, help));
    }
    page.push_str(".SH ENVIRONMENT\n");
    page.push_str(&entry("RUST_LOG", "What is logged to stderr, such as debug; it overrides -v."));
    let mut others: Vec<String> =
        documented(command).map(|c| format!("{name}-{}", c.get_name())).collect();
    if !above.is_empty() {
        others.insert(0, above.join("-"));
    }
    if above.len() > 1 {
        others.insert(0, above[0].to_owned());
    }
    let others: Vec<String> = others.iter().map(|page| format!("\\fB{page}\\fR(1)")).collect();
    page.push_str(".SH \"SEE ALSO\"\n");
    page.push_str(&others.join(", ").replace('-', "\\-"));
    page.push('\n');
    page
}

/// A term and its explanation.
fn entry(term: &str, text: &str) -> String {
    format!(".TP\n\\fB{term}\\fR\n{text}\n").replace('-', "\\-")
}

/// The paths that options have by default, and what is at each.
fn files(command: &Command) -> impl Iterator<Item = (String, String)> {
    command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| {
        let path = arg.get_default_values().first()?.to_str()?;
        let help = arg.get_help()?.to_string();
        path.starts_with('/').then(|| (path.to_owned(), help))
    })
}

/// The document that lists all commands.
fn document() -> String {
    let mut text = String::from(
        "# Commands\n\nFor users and scripts: what every command is for, and what it exits with. Generated from the \
         command line;\n`fairweir generate commands` prints it.\n\n\
         ## Exit codes\n\n| code | meaning |\n|---:|---|\n",
    );
    for (exit, meaning) in TABLE {
        text.push_str(&format!("| {} | {meaning} |\n", exit.code()));
    }
    text.push_str(
        "\nA daemon that cannot start because an interface is missing exits with 1: systemd starts it again until \
         there is one.\nWith `--json` an error is also an object on stdout: \
         `{\"error\":\"…\",\"exit_code\":2}`.\n",
    );
    let mut root = cli::command();
    root.build();
    for (title, names) in GROUPS {
        text.push_str(&format!("\n## {title}\n\n| command | what it does |\n|---|---|\n"));
        for name in *names {
            let found = root.find_subcommand(name);
            if let Some(command) = found.filter(|c| !c.is_hide_set()) {
                rows(command, "fairweir", &mut text);
            }
        }
    }
    text
}

fn rows(command: &Command, above: &str, text: &mut String) {
    let path = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    text.push_str(&format!("| `{path}` | {} |\n", about.replace('|', "\\|")));
    documented(command).for_each(|below| rows(below, &path, text));
}

/// The subcommands for people: without `help`, which every command has, and without hidden ones.
fn documented(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the names of all commands: `path` as on the command line, joined by `-`.
    fn names(command: &Command, above: &str, into: &mut Vec<String>) {
        let name = format!("{above}{}", command.get_name());
        documented(command).for_each(|below| names(below, &format!("{name}-"), into));
        into.push(name);
    }

    #[test]
    fn every_command_has_a_page_with_its_usage() {
        let mut wanted = Vec::new();
        names(&cli::command(), "", &mut wanted);
        assert!(wanted.len() > 30, "{wanted:?}");
        let pages = pages().unwrap();
        assert_eq!(pages.len(), wanted.len());
        for name in wanted {
            let page = pages.iter().find(|(n, _)| *n == name);
            let page = String::from_utf8(page.expect(&name).1.clone()).unwrap();
            for section in ["SYNOPSIS", "\"EXIT STATUS\"", "ENVIRONMENT", "\"SEE ALSO\""] {
                assert!(page.contains(&format!(".SH {section}\n")), "{section}: {page}");
            }
            let has_below = page.contains(".SH SUBCOMMANDS\n");
            assert!(has_below || page.contains(".SH EXAMPLES\n"), "{page}");
            assert!(!page.contains(".SH EXTRA\n"), "{page}");
            assert!(page.contains(&format!(".TH {} ", name.to_uppercase())), "{page}");
        }
    }

    #[test]
    fn pages_name_the_files_of_their_options() {
        let pages = pages().unwrap();
        let of = |name: &str| {
            let page = pages.iter().find(|(n, _)| n == name).unwrap();
            String::from_utf8(page.1.clone()).unwrap()
        };
        for (name, file) in [
            ("fairweir-isp", "/etc/fairweir/isp.toml"),
            ("fairweir-host", "/var/lib/fairweir/host"),
            ("fairweir-sender-status", "/run/fairweir"),
        ] {
            let page = of(name);
            let files = page.split(".SH FILES\n").nth(1).unwrap();
            assert!(files.contains(file), "{name}: {files}");
        }
        assert!(
            of("fairweir-isp-plan-add")
                .contains("SEE ALSO\"\n\\fBfairweir\\fR(1), \\fBfairweir\\-isp\\-plan")
        );
    }

    #[test]
    fn hidden_options_are_not_documented() {
        for (name, page) in pages().unwrap() {
            let page = String::from_utf8(page).unwrap();
            assert!(!page.contains("until\\-stdin\\-closes"), "{name}");
            assert!(!page.contains("generate"), "{name}");
        }
    }
}
