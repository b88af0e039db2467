//! `fairweir generate`: completions and man pages, made from the command line's own definition.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use fairweir_config::{output, text, uci};

use crate::cli::{Cli, GenerateCommand};

pub(crate) fn run(command: &GenerateCommand) -> anyhow::Result<()> {
    match command {
        GenerateCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "fairweir", &mut script);
            Ok(io::stdout().lock().write_all(&script)?)
        }
        GenerateCommand::Uci { file, lan, wan } => {
            let toml = uci::router_toml(file, lan, wan)?.unwrap_or_default();
            Ok(text::stdout().write_all(toml.as_bytes())?)
        }
        GenerateCommand::Man { out } => write_pages(out),
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

/// Each page's name and text, the whole command's first.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command();
    // Gives each subcommand its whole usage: `fairweir isp add`.
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
    pages.push((name, page));
    documented(command).try_for_each(|below| add_pages(below, &path, pages))
}

/// The subcommands that people use: not `help`, which every command has, nor what is hidden.
fn documented(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of all commands, as `path` on the command line has them, joined by `-`.
    fn names(command: &Command, above: &str, into: &mut Vec<String>) {
        let name = format!("{above}{}", command.get_name());
        documented(command).for_each(|below| names(below, &format!("{name}-"), into));
        into.push(name);
    }

    #[test]
    fn every_command_has_a_page_with_its_usage() {
        let mut wanted = Vec::new();
        names(&Cli::command(), "", &mut wanted);
        assert!(wanted.len() > 30, "{wanted:?}");
        let pages = pages().unwrap();
        assert_eq!(pages.len(), wanted.len());
        for name in wanted {
            let page = pages.iter().find(|(n, _)| *n == name);
            let page = String::from_utf8(page.expect(&name).1.clone()).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
            assert!(page.contains(&format!(".TH {} ", name.to_uppercase())), "{page}");
        }
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
