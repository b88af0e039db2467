//! Questions to the person at the terminal.

use std::io::{self, BufRead, Write};

use fairweir_config::text;

use crate::exit::Usage;

/// Asks on stderr and reads answers from stdin; an empty answer selects the suggestion.
pub(crate) struct Questions {
    pub(crate) are_asked: bool,
}

impl Questions {
    fn ask(&mut self, question: &str, suggested: &str) -> anyhow::Result<String> {
        let mut err = io::stderr();
        write!(err, "{question} [{}] ", text::escaped(suggested))?;
        err.flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            writeln!(err)?;
            return Err(Usage("no answer; --yes takes what is suggested".to_owned()).into());
        }
        let answer = line.trim();
        Ok(if answer.is_empty() { suggested.to_owned() } else { answer.to_owned() })
    }

    /// The name of an interface; `if_none` is the error if none is suggested and nothing is asked.
    pub(crate) fn name(
        &mut self,
        question: &str,
        suggested: Option<String>,
        if_none: &str,
    ) -> anyhow::Result<String> {
        let name = match (suggested, self.are_asked) {
            (Some(suggested), false) => suggested,
            (None, false) => return Err(Usage(if_none.to_owned()).into()),
            (suggested, true) => self.ask(question, &suggested.unwrap_or_default())?,
        };
        crate::instance::parse(&name).map_err(|e| Usage(e).into())
    }

    /// Asks for permission.
    ///
    /// # Errors
    /// If there is no answer.
    pub(crate) fn confirm(&mut self, question: &str, suggested: bool) -> anyhow::Result<bool> {
        if !self.are_asked {
            return Ok(suggested);
        }
        loop {
            match self.ask(question, if suggested { "yes" } else { "no" })?.as_str() {
                "yes" | "y" => return Ok(true),
                "no" | "n" => return Ok(false),
                _ => writeln!(io::stderr(), "answer yes or no")?,
            }
        }
    }

    /// Asks for one of `names` by its number; `None` if no name is chosen.
    pub(crate) fn choose(
        &mut self,
        question: &str,
        names: &[String],
    ) -> anyhow::Result<Option<usize>> {
        if !self.are_asked || names.is_empty() {
            return Ok(None);
        }
        for (i, name) in names.iter().enumerate() {
            writeln!(io::stderr(), "  {}  {}", i + 1, text::escaped(name))?;
        }
        let question = format!("{question} A number, or 0 for what is suggested.");
        loop {
            match self.ask(&question, "0")?.parse::<usize>() {
                Ok(0) => return Ok(None),
                Ok(n) if n <= names.len() => return Ok(Some(n - 1)),
                _ => writeln!(io::stderr(), "answer 0 to {}", names.len())?,
            }
        }
    }
}
