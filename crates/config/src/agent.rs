//! The file of `fairweir market agent`: a household's preferences by kind of use and time of the week.

use std::path::{Path, PathBuf};

use fairweir_core::calendar::{DAY_MIN, DAYS, Window};
use fairweir_core::market::preferences::{IMPORTANCE_MAX, Importance, Preferences, Time};

use crate::FileKind;
use crate::error::ConfigError;
use crate::file::{DAEMON, Rules, Text};
use crate::host::set;
use crate::mistakes;
use crate::table::{Source, Table};
use crate::value::minute;
use crate::words::not_one_of;
use crate::{MetricsAt, VERSION};

/// The path that is read if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/fairweir/agent.toml";
/// The most times of the week in a file.
pub const TIMES_MAX: usize = 64;

/// The longest name of a time, in bytes.
const NAME_MAX: usize = 64;
/// In the order of [`fairweir_core::market::utility::Kind::ALL`].
pub const KINDS: [&str; 4] = ["streaming", "social", "downloads", "web"];
/// The importance of a kind that the file does not mention.
const USUAL: Importance = 1;

/// A daemon that shapes at home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// `fairweir host`.
    Host,
    /// `fairweir router`.
    Router,
    /// `fairweir proxy`.
    Proxy,
}

impl Told {
    const ALL: [(&'static str, Told); 3] =
        [("host", Told::Host), ("router", Told::Router), ("proxy", Told::Proxy)];
}

/// A valid file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Where metrics are served over HTTP.
    pub metrics: Option<MetricsAt>,
    /// The daemons of this host that are told the rate that is bought for a slot.
    pub told: Vec<Told>,
    /// The household's preferences.
    pub preferences: Preferences,
    /// Settings without effect, each with its place.
    pub warnings: Vec<String>,
}

/// The directory beside the file. A table `[set]` in its `*.toml` replaces importances of the file.
pub fn set_dir(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join("agent.d")
}

/// The [`set::PathOf`] of an agent: accepts `always.KIND` and `time.NAME.KIND`.
pub fn path_of(key: &str) -> Option<Vec<&str>> {
    let (table, kind) = key.rsplit_once('.')?;
    if !KINDS.contains(&kind) {
        return None;
    }
    match table.split_once('.') {
        None if table == "always" => Some(vec!["always", kind]),
        Some(("time", name)) => Some(vec!["time", name, kind]),
        _ => None,
    }
}

impl AgentFile {
    /// Reads the file.
    ///
    /// # Errors
    /// All that is wrong: file, line, key, what is allowed.
    pub fn load(path: &Path) -> Result<AgentFile, ConfigError> {
        let text = Text::read(path, &Rules { if_missing: FileKind::Agent.if_missing(), ..DAEMON })?;
        let changes = Text::read_dir(&set_dir(path), set::FILE_BYTES_MAX)?;
        mistakes::all(text.as_str().len(), |mends| {
            let mut file = AgentFile::parse(text.source(&[]).mended(mends), path)?;
            for (_, text) in &changes {
                file.set(text.source(&[]).mended(mends))?;
            }
            Ok(file)
        })
    }

    pub(crate) fn parse(source: Source<'_>, path: &Path) -> Result<AgentFile, ConfigError> {
        let mut top = source.top()?;
        top.version_of(FileKind::Agent, VERSION)?;
        let (mut metrics, mut told) = (None, Vec::new());
        if let Some(mut table) = top.table("agent")? {
            metrics = table.parsed_by("metrics", MetricsAt::parse)?.map(|p| p.value);
            for name in table.texts("tell")?.into_iter().flat_map(|list| list.value) {
                let known = Told::ALL.iter().find(|(known, _)| *known == name.value);
                let names = Told::ALL.map(|(known, _)| known);
                let wrong = || name.place.error(not_one_of(&name.value, &names));
                let (_, daemon) = known.ok_or_else(wrong)?;
                if told.contains(daemon) {
                    return Err(name.place.error(format!("duplicate daemon `{}`", name.value)));
                }
                told.push(*daemon);
            }
            table.finish()?;
        }
        let mut always = [USUAL; KINDS.len()];
        if let Some(mut table) = top.table("always")? {
            always = importance(&mut table)?.map(|said| said.unwrap_or(USUAL));
            table.finish()?;
        }
        let mut times = Vec::new();
        for table in top.tables("time")? {
            if times.len() == TIMES_MAX {
                return Err(table.place().error(format!("too many times (at most {TIMES_MAX})")));
            }
            times.push(time(table)?);
        }
        top.finish()?;
        let preferences = Preferences { always, times };
        Ok(AgentFile { path: path.to_owned(), metrics, told, preferences, warnings: Vec::new() })
    }

    /// Replaces importances by those of a later file.
    fn set(&mut self, source: Source<'_>) -> Result<(), ConfigError> {
        let mut top = source.top()?;
        top.version(VERSION)?;
        if let Some(mut set) = top.table("set")? {
            if let Some(mut table) = set.table("always")? {
                let said = importance(&mut table)?;
                table.finish()?;
                for (known, said) in self.preferences.always.iter_mut().zip(said) {
                    *known = said.unwrap_or(*known);
                }
            }
            if let Some(mut times) = set.table("time")? {
                for name in times.keys() {
                    let Some(mut table) = times.table(&name)? else { continue };
                    let (said, place) = (importance(&mut table)?, table.place());
                    table.finish()?;
                    let all = self.preferences.times.iter_mut();
                    let named: Vec<&mut Time> = all.filter(|time| time.name == name).collect();
                    if named.is_empty() {
                        let what = "no effect, because there is no time with this name";
                        self.warnings.push(format!("{place}: set.time.{name}: {what}"));
                    }
                    for time in named {
                        for (known, said) in time.importance.iter_mut().zip(said) {
                            *known = said.or(*known);
                        }
                    }
                }
            }
            set.finish()?;
        }
        top.finish()
    }
}

fn importance(table: &mut Table<'_>) -> Result<[Option<Importance>; KINDS.len()], ConfigError> {
    let mut said = [None; KINDS.len()];
    for (kind, said) in KINDS.iter().zip(&mut said) {
        let number = table.integer(kind, 0, IMPORTANCE_MAX.into())?;
        *said = number.map(|p| p.value as Importance);
    }
    Ok(said)
}

fn time(mut table: Table<'_>) -> Result<Time, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a name for reports"))?;
    if name.value.is_empty() || name.value.len() > NAME_MAX {
        return Err(name.place.error(format!("a name has 1 to {NAME_MAX} bytes")));
    }
    let mut days = [true; DAYS.len()];
    if let Some(list) = table.texts("days")? {
        days = [false; DAYS.len()];
        for day in list.value {
            let known = DAYS.iter().position(|known| *known == day.value);
            days[known.ok_or_else(|| day.place.error(not_one_of(&day.value, &DAYS)))?] = true;
        }
    }
    let mut clock = |key: &str| {
        let read = table.parsed_by(key, minute)?;
        read.map(|p| p.value).ok_or_else(|| table.missing(key, "a time such as \"20:00\""))
    };
    let (from, to) = (clock("from")? % DAY_MIN, clock("to")?);
    let importance = importance(&mut table)?;
    if importance.iter().all(Option::is_none) {
        return Err(table.missing("streaming", "an importance of at least one kind of use, 0 to 3"));
    }
    table.finish()?;
    Ok(Time { name: name.value, window: Window { days, from, to }, importance })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AgentFile, String> {
        let text = format!("version = 1\n{text}");
        let source = Source::new(&text, "agent.toml", &[]);
        AgentFile::parse(source, Path::new("agent.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn times_are_read_with_what_they_leave_unsaid() {
        let file = parse(
            "[always]\nweb = 2\n[[time]]\nname = \"film\"\ndays = [\"fri\", \"sat\"]\n\
             from = \"20:00\"\nto = \"24:00\"\nstreaming = 3\n",
        )
        .unwrap();
        assert_eq!(file.preferences.always, [1, 1, 1, 2]);
        let film = &file.preferences.times[0];
        assert_eq!((film.window.from, film.window.to), (1_200, 1_440));
        assert_eq!(film.window.days, [false, false, false, false, true, true, false]);
        assert_eq!(film.importance, [Some(3), None, None, None]);
        assert_eq!(parse("").unwrap().preferences.always, [1; 4]);
        assert_eq!(parse("").unwrap().told, []);
        let told = parse("[agent]\ntell = [\"router\", \"proxy\"]\n").unwrap().told;
        assert_eq!(told, [Told::Router, Told::Proxy]);
    }

    #[test]
    fn a_later_file_replaces_importances_and_names_what_has_no_effect() {
        let mut file =
            parse("[[time]]\nname = \"film\"\nfrom = \"20:00\"\nto = \"22:00\"\nweb = 2\n")
                .unwrap();
        let changes = [("always.web", 3), ("time.film.streaming", 2), ("time.a.b.web", 1)];
        let changes = changes.map(|(key, n)| (key.to_owned(), Some(set::Setting::Number(n))));
        let (text, undo) = set::changed("", &changes.into(), path_of).unwrap();
        file.set(Source::new(&text, "zz-set.toml", &[])).unwrap();
        assert_eq!(file.preferences.always, [1, 1, 1, 3]);
        assert_eq!(file.preferences.times[0].importance, [Some(2), None, None, Some(2)]);
        let [warning] = &file.warnings[..] else { panic!("{:?}", file.warnings) };
        assert!(warning.contains("set.time.a.b: no effect"), "{warning}");
        assert_eq!(set::changed(&text, &undo, path_of).unwrap().0, "");
        for key in ["always", "always.games", "time.web", "weight.web", "web", "time..web.x", ""] {
            assert_eq!(path_of(key), None, "{key}");
        }
        for text in ["[set.always]\nweb = 4\n", "[always]\nweb = 1\n", "[set]\nlatency = \"5ms\"\n"]
        {
            let text = format!("version = 1\n{text}");
            assert!(file.set(Source::new(&text, "x.toml", &[])).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_one_error_with_its_line() {
        let time = |keys: &str| format!("[[time]]\nname = \"x\"\n{keys}");
        for (text, says) in [
            (time("from = \"20:00\"\nto = \"22:00\"\n"), "importance"),
            (time("from = \"20:00\"\nto = \"22:00\"\nstreaming = 4\n"), "from 0 to 3"),
            (time("from = \"20:00\"\nto = \"22:00\"\nstreaming = -1\n"), "from 0 to 3"),
            (time("from = \"20:60\"\nto = \"22:00\"\nweb = 1\n"), "20:60"),
            (time("from = \"+1:00\"\nto = \"22:00\"\nweb = 1\n"), "not a time"),
            (time("from = \"20:00\"\nto = \"24:01\"\nweb = 1\n"), "24:01"),
            (time("from = \"20:00\"\nweb = 1\n"), "to: missing"),
            (time("from = \"20:00\"\nto = \"22:00\"\nweb = 1\ndays = [\"fry\"]\n"), "fri"),
            (time("from = \"20:00\"\nto = \"22:00\"\nweb = 1\ngames = 1\n"), "unknown key"),
            ("[always]\ngames = 1\n".to_owned(), "unknown key"),
            ("[agent]\ntell = [\"isp\"]\n".to_owned(), "router"),
            ("[agent]\ntell = [\"host\", \"host\"]\n".to_owned(), "duplicate daemon `host`"),
            (time("from = \"20:00\"\nto = \"22:00\"\nweb = 1\n").repeat(TIMES_MAX + 1), "too many"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with("agent.toml:") && error.contains(says), "{text}\n{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
