//! What to type instead of a command line that clap refuses, on one line, where clap cannot know it.

use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use fairweir_config::{did_you_mean, nearest};

use super::command;
use crate::exit::Usage;

/// Prints the help that was asked for, or clap's own answer; a better one is returned as an error.
///
/// # Errors
/// [`Usage`].
pub(crate) fn answer(error: &clap::Error, args: &[String]) -> Result<ExitCode, Usage> {
    let mut root = command();
    root.build();
    match better(error, &root, args) {
        Some(what) => Err(Usage(what)),
        None => {
            // stdout or stderr may be closed.
            let _ = error.print();
            Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX)))
        }
    }
}

fn better(error: &clap::Error, root: &Command, args: &[String]) -> Option<String> {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (command, path) = meant(root, args);
    match error.kind() {
        ErrorKind::UnknownArgument => Some(unknown(command, &path, said(ContextKind::InvalidArg)?)),
        ErrorKind::InvalidSubcommand => {
            let word = said(ContextKind::InvalidSubcommand)?;
            let is_value = to_type(command, &path, word).starts_with("; use --");
            let says = if is_value { unknown } else { no_command };
            Some(says(command, &path, word))
        }
        ErrorKind::MissingRequiredArgument if path.ends_with("boost") => {
            Some("a group and a time are missing, such as `fairweir boost video 2h`".to_owned())
        }
        ErrorKind::MissingRequiredArgument if path.ends_with("pause") => Some(
            "a group and a time are missing, such as `fairweir pause backup 30m`; for all traffic use \
             `fairweir set paused=true`"
                .to_owned(),
        ),
        ErrorKind::ValueValidation => {
            let (arg, cause) = (said(ContextKind::InvalidArg)?, std::error::Error::source(error)?);
            Some(format!("{}: {cause}", arg.split(' ').next().unwrap_or(arg)))
        }
        ErrorKind::InvalidValue => {
            let (arg, value) = (said(ContextKind::InvalidArg)?, said(ContextKind::InvalidValue)?);
            let Some(ContextValue::Strings(allowed)) = error.get(ContextKind::ValidValue) else {
                return None;
            };
            let arg = arg.split(' ').next().unwrap_or(arg);
            let hint = did_you_mean(value, allowed.iter().map(String::as_str));
            let value = if value.is_empty() { "no value".to_owned() } else { format!("`{value}`") };
            Some(format!("{arg}: {value}{hint}; allowed: {}", allowed.join(", ")))
        }
        _ => None,
    }
}

/// The command that the arguments lead to, and how it is written without `fairweir`.
fn meant<'c>(root: &'c Command, args: &[String]) -> (&'c Command, String) {
    let mut command = root;
    let mut path = Vec::new();
    for arg in args.iter().filter(|arg| !arg.starts_with('-')) {
        match command.find_subcommand(arg) {
            Some(below) => {
                command = below;
                path.push(below.get_name());
            }
            None => break,
        }
    }
    (command, path.join(" "))
}

fn unknown(command: &Command, path: &str, word: &str) -> String {
    if let Some((_, _, what)) = MOVED.iter().find(|(of, option, _)| *of == path && *option == word)
    {
        return format!("`fairweir {path}` has no {word}: {what}");
    }
    let space = if path.is_empty() { "" } else { " " };
    let (to_type, options) = (to_type(command, path, word), options(command).join(", "));
    format!("unknown argument `{word}` of `fairweir{space}{path}`{to_type}; options: {options}")
}

/// The options that people see.
fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect()
}

/// What was probably meant by a word that is no argument.
fn to_type(command: &Command, path: &str, word: &str) -> String {
    let options = options(command);
    let has = |option: &str| options.iter().any(|long| long == option);
    match word {
        _ if word.starts_with('-') => did_you_mean(word, options.iter().map(String::as_str)),
        _ if DAEMONS.contains(&word) && VERBS.contains(&path) => {
            format!("; use `fairweir {word} {path}`")
        }
        "page" if ["status", "off"].contains(&path) => format!("; use `fairweir page {path}`"),
        _ if word.ends_with(".toml") && has("--config") => format!("; use --config {word}"),
        _ if has("--dev") && is_nothing_else(command, word) => format!("; use --dev {word}"),
        _ => String::new(),
    }
}

/// Whether a word is unlike every command.
fn is_nothing_else(command: &Command, word: &str) -> bool {
    nearest(word, command.get_subcommands().map(Command::get_name)).is_none()
}

fn no_command(command: &Command, path: &str, word: &str) -> String {
    let space = if path.is_empty() { "" } else { " " };
    if let Some((_, instead)) = INSTEAD.iter().find(|(typed, _)| path.is_empty() && *typed == word)
    {
        return format!("no command `{word}`; use {instead}");
    }
    let names: Vec<&str> =
        command.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
    let hint = did_you_mean(word, names.iter().copied());
    format!("no command `{word}` of `fairweir{space}{path}`{hint}; commands: {}", names.join(", "))
}

/// Words that people know from other programs, and what they are here.
const INSTEAD: [(&str, &str); 20] = [
    ("completions", "`fairweir generate completions SHELL`"),
    ("completion", "`fairweir generate completions SHELL`"),
    ("man", "`fairweir generate man --out DIR`"),
    ("start", "`fairweir host --dev DEV` or `systemctl start fairweir@DEV`"),
    ("run", "`fairweir host --dev DEV`"),
    ("daemon", "`fairweir host --dev DEV`"),
    ("stop", "`fairweir off`"),
    ("down", "`fairweir off`"),
    ("kill", "`fairweir off --force`"),
    (
        "restart",
        "`systemctl restart fairweir@DEV`; `fairweir reload` reads the configuration again",
    ),
    ("config", "`fairweir check`"),
    ("validate", "`fairweir check`"),
    ("verify", "`fairweir check`"),
    ("resume", "`fairweir set paused=`, or `fairweir pause --end GROUP`"),
    ("show", "`fairweir status`"),
    ("log", "`journalctl -u fairweir@DEV`"),
    ("version", "`fairweir --version`"),
    ("devices", "`fairweir router devices`"),
    ("try", "`fairweir router try 10m` or `fairweir host try 10m --dev DEV`"),
    ("test", "`fairweir router test` or `fairweir host test --dev DEV`"),
];

/// Options that another daemon has, and where the same is set for this one.
const MOVED: [(&str, &str, &str); 11] = [
    ("router", "--dev", "`wan` in router.toml names the interface; --config names the file"),
    ("router", "--wan", "`wan` in router.toml names the interface; --config names the file"),
    ("router", "--lan", "`lan` in router.toml names the interface; --config names the file"),
    ("isp", "--dev", "`device` in isp.toml names the interface; --config names the file"),
    ("proxy", "--dev", "`lan` in proxy.toml names the interfaces; --config names the file"),
    ("sender", "--dev", "it is for all interfaces; `match` in sender.toml chooses connections"),
    ("market serve", "--config", "`fairweir market init` stores the rules of a market"),
    ("check", "--config", "the file follows without it: `fairweir check FILE`"),
    ("check", "-c", "the file follows without it: `fairweir check FILE`"),
    ("host", "--capacity", "`capacity` in fairweir.toml sets it"),
    ("top", "--json", "use `fairweir host status --json`"),
];

/// The daemons, as commands are called.
const DAEMONS: [&str; 6] = ["host", "router", "isp", "sender", "proxy", "market"];

/// Commands that daemons have under their own name too.
const VERBS: [&str; 4] = ["status", "top", "reload", "off"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_was_moved_belongs_to_a_command_that_lacks_it() {
        let mut root = command();
        root.build();
        for (path, option, _) in MOVED {
            let words: Vec<String> = path.split(' ').map(str::to_owned).collect();
            let (command, found) = meant(&root, &words);
            assert_eq!(found, path);
            let long = option.trim_start_matches('-');
            let short = long.chars().next().filter(|_| long.len() == 1);
            let has = |arg: &clap::Arg| {
                arg.get_long() == Some(long) || (short.is_some() && arg.get_short() == short)
            };
            assert!(!command.get_arguments().any(has), "{path} {option}");
        }
    }

    #[test]
    fn words_of_other_programs_are_no_commands_here() {
        let mut root = command();
        root.build();
        for (word, _) in INSTEAD {
            assert!(root.find_subcommand(word).is_none(), "{word}");
        }
    }
}
