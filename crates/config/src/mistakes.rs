//! Reports all mistakes of a file at once.
//!
//! A reader stops at its first mistake. [`all`] notes it and reads again as if the place were right, until the reader
//! succeeds. A misspelt key is read as the one that was probably meant; a wrong or missing value as an allowed one
//! ([`GUESSES`]). What cannot be mended in this way is left out, then the table around it. An error that only a mend
//! causes is not reported. Nothing of a file with a mistake is used.

use std::cell::RefCell;

use crate::error::{ConfigError, Origin};

/// The most mistakes that are reported.
pub const MISTAKES_MAX: usize = 20;

/// The most times that a file is read: each mistake takes one to six readings.
const ROUNDS: usize = 6 * MISTAKES_MAX;

/// Of a larger input only the first mistake is reported, because reading it takes long.
const BYTES_MAX: usize = 1 << 20;

/// Values that replace a wrong one; the first that its reader accepts is used.
pub(crate) const GUESSES: [&str; 10] = [
    "5ms",
    "30mbit",
    "60s",
    "1MB",
    "auto",
    "fairweir",
    "127.0.0.1:9115",
    "192.0.2.1",
    "192.0.2.0/24",
    "proxy",
];

/// Further replacements, for readers that take any text first and check it later.
const TEXTS: [&str; 2] = ["192.0.2.0/24", "192.0.2.1"];

/// A name that replaces a wrong name at this place.
pub(crate) fn unknown(at: usize) -> String {
    format!("unknown{at}")
}

/// A text that replaces a wrong one: `first`, then one of [`TEXTS`].
pub(crate) fn guessed(first: String, nth: usize) -> String {
    nth.checked_sub(1).and_then(|nth| TEXTS.get(nth)).map_or(first, |&text| text.to_owned())
}

/// The mends of documents.
#[derive(Debug, Default)]
pub struct Mends {
    list: Vec<Mend>,
    /// Names of the tables that were left out, and of their groups: errors that mention them are not reported.
    names: RefCell<Vec<String>>,
}

/// The mend of one place: of a key, an entry of a list, or a key that a table lacks.
#[derive(Debug)]
struct Mend {
    file: String,
    at: usize,
    key: String,
    how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The key is read as this one.
    Meant(String),
    /// The value is replaced by a possibly allowed one: the first, second or third that is tried.
    Replaced(usize),
    /// The key or entry is left out.
    LeftOut,
}

impl Mends {
    /// How a place of a document is mended.
    pub(crate) fn of(&self, file: &str, at: usize, key: &str) -> Option<&How> {
        let found = self.list.iter().find(|m| m.at == at && m.key == key && m.file == file);
        found.map(|mend| &mend.how)
    }

    pub(crate) fn note_left_out(&self, name: &str) {
        self.names.borrow_mut().push(format!("`{name}`"));
    }

    /// Whether the error is a consequence of a mend.
    fn cause(&self, error: &ConfigError) -> bool {
        let is_caused = error.hint().is_some_and(|hint| hint.is_caused);
        let says = |name: &String| error.what().contains(name.as_str());
        is_caused
            || self.names.borrow().iter().any(says)
            || self.list.iter().any(|mend| says(&unknown(mend.at)))
    }

    /// Adds or changes the mend for an error's place; false if no mend is left to try.
    fn add(&mut self, error: &ConfigError) -> bool {
        let (Origin::Line { file, .. }, Some(hint)) = (error.origin(), error.hint()) else {
            return false;
        };
        let mut tries: Vec<_> =
            (0..=TEXTS.len()).map(|nth| (error.key().to_owned(), How::Replaced(nth))).collect();
        if let Some(meant) = &hint.meant {
            tries.insert(0, (error.key().to_owned(), How::Meant(meant.clone())));
        }
        tries.push((error.key().to_owned(), How::LeftOut));
        if let (true, Some((table, _))) = (hint.is_missing, error.key().rsplit_once('.')) {
            tries.push((table.to_owned(), How::LeftOut));
        }
        let before = |key: &str| {
            let is_same = |m: &Mend| m.at == hint.at && m.key == key && m.file == *file;
            self.list.iter().position(is_same)
        };
        let tried = tries
            .iter()
            .rposition(|(key, how)| before(key).is_some_and(|i| self.list[i].how == *how));
        let Some((key, how)) = tries.into_iter().nth(tried.map_or(0, |i| i + 1)) else {
            return false;
        };
        match before(&key) {
            Some(i) => self.list[i].how = how,
            None => self.list.push(Mend { file: file.clone(), at: hint.at, key, how }),
        }
        true
    }
}

/// Reads files with `bytes` in total; on an error reports all their mistakes.
///
/// # Errors
/// [`ConfigError`]: the first mistake, and [`the others`](ConfigError::all), by file and line.
pub fn all<T>(
    bytes: usize,
    read: impl Fn(Option<&Mends>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let mut error = match read(None) {
        Ok(value) => return Ok(value),
        Err(error) if bytes > BYTES_MAX => return Err(error),
        Err(error) => error,
    };
    let (mut mends, mut found) = (Mends::default(), Vec::new());
    for _ in 0..ROUNDS {
        if !mends.cause(&error) {
            let new: Vec<_> = error.all().filter(|one| !found.contains(one)).collect();
            found.extend(new);
        }
        if found.len() >= MISTAKES_MAX || !mends.add(&error) {
            break;
        }
        match read(Some(&mends)) {
            Ok(_) => break,
            Err(next) => error = next,
        }
    }
    found.truncate(MISTAKES_MAX);
    Err(ConfigError::of_all(found).unwrap_or(error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::host::{Config, Role};
    use crate::isp::IspFile;
    use crate::sender::SenderFile;
    use crate::{Text, uci};

    /// The mistakes of a reader, without the name of the file.
    fn mistakes<T>(
        text: &str,
        read: impl Fn(crate::Source<'_>) -> Result<T, ConfigError>,
    ) -> Vec<String> {
        let text = Text::new(text, "f");
        match all(text.as_str().len(), |mends| read(text.source(&[]).mended(mends))) {
            Ok(_) => Vec::new(),
            Err(error) => error.all().map(|one| one.to_string()).collect(),
        }
    }

    fn of_host(text: &str) -> Vec<String> {
        mistakes(text, |source| Config::read(Role::Host, &[source], Vec::new()))
    }

    /// Checks that each of `found` begins with the line and key of one of `wanted` and contains its words, in order.
    fn assert_all(found: &[String], wanted: &[(&str, &str)]) {
        let is_as = |(one, (place, words)): (&String, &(&str, &str))| {
            one.starts_with(&format!("f:{place}: ")) && one.contains(words)
        };
        let fits = found.len() == wanted.len() && found.iter().zip(wanted).all(is_as);
        assert!(fits, "{found:#?}\nwanted: {wanted:#?}");
    }

    #[test]
    fn every_mistake_is_reported_and_none_that_follows_from_another() {
        let text = "[host]\nlatency = 5\ncontrol = \"static\"\ncapacity = 30\nprobee = \"of\"\nupload = \"yes\"\n\
                    [[group]]\nname = \"a\"\nwieght = \"3\"\nmatch = [\"app:a\", \"ap:b\", \"port:9-8\"]\n\
                    [[group]]\nname = \"b\"\nmatch = \"app:b\"\n\
                    [[group]]\nname = \"a\"\nweight = 1\nmatch = [\"app:c\"]\ncolour = 1\n\
                    [hots]\n";
        assert_all(
            &of_host(text),
            &[
                ("1: version", "missing"),
                ("2: host.latency", "such as \"5ms\""),
                ("4: host.capacity", "such as \"30mbit\""),
                ("5: host.probee", "did you mean `probe`"),
                ("5: host.probe", "did you mean `off`"),
                ("6: host.upload", "write true without quotes"),
                ("9: group.wieght", "did you mean `weight`"),
                ("9: group.weight", "write 3 without quotes"),
                ("10: group.match", "did you mean `app`"),
                ("10: group.match", "write 8-9"),
                ("11: group.weight", "missing"),
                ("13: group.match", "such as [\"app:b\"]"),
                ("15: group.name", "duplicate group `a`"),
                ("18: group.colour", "unknown key"),
                ("19: hots", "did you mean `host`"),
            ],
        );
        assert_eq!(of_host("version = 1\n"), [""; 0]);
        // A newer file, the file of another daemon, and a file that is not TOML yield one mistake.
        let syntax = of_host("version = 1\n[host]\ndev = eth0\nprobe: 5\nlatency = \"5ms\"\n");
        assert_all(&syntax, &[("3: syntax", "quoted"), ("4: syntax", "expected `=`")]);
        for text in ["version = 2\n[host]\nx = 1\n", "version = 1\n[isp]\nx = 1\n"] {
            assert_eq!(of_host(text).len(), 1, "{text}{:?}", of_host(text));
        }
    }

    #[test]
    fn files_of_other_daemons_and_of_uci_are_answered_in_whole() {
        let isp = mistakes(
            "version = 1\n[isp]\ndevice = 7\nhook = \"xpd\"\n[[plan]]\nname = \"a\"\ndownload = 50\n\
             [[plan]]\nname = \"b\"\n[[subscriber]]\nname = \"x\"\naddresses = [\"192.0.2.1/24\"]\n\
             [leases]\nfiles = [\"l\"]\nplan = \"b\"\n[usage]\ninterval = \"5s\"\n",
            |source| IspFile::parse(source, Path::new("f")),
        );
        assert_all(
            &isp,
            &[
                ("3: isp.device", "expected a text"),
                ("4: isp.hook", "did you mean `xdp`"),
                ("7: plan.download", "such as \"50mbit\""),
                ("8: plan.download", "missing"),
                ("10: subscriber.plan", "missing"),
                ("12: subscriber.addresses", "host bits"),
                ("17: usage.interval", "out of range"),
            ],
        );
        let sender = mistakes(
            "version = 1\n[[bundle]]\nname = \"a\"\n[[bundle.free]]\nmatch = [\"x\"]\ntarget = 8\n",
            |source| SenderFile::parse(source, Path::new("f")),
        );
        assert_all(
            &sender,
            &[
                ("2: bundle.peers", "missing"),
                ("2: bundle.stunts", "[[bundle.stunts]]"),
                ("5: bundle.free.match", "has no kind"),
                ("6: bundle.free.target", "such as \"8mbit\""),
            ],
        );
        let uci = "config router\n\toption upload maybe\n\toption wan 'a b/c'\n\toption latency 5\n\
                   config devise\nnonsense\nconfig device\n\toption name tv\n\toption weight -1\n\
                   \tlist match 'ip:192.0.2.7'\n\toption colour red\n";
        let error = uci::judged(uci, "f", "lan", "wan").unwrap_err();
        assert_all(
            &error.all().map(|one| one.to_string()).collect::<Vec<_>>(),
            &[
                ("2: router.upload", "neither 1 nor 0"),
                ("3: router.wan", "not a name"),
                ("4: router.latency", ""),
                ("5", "unknown section `devise`"),
                ("6", "no line of UCI"),
                ("9: device.weight", "not a weight"),
                ("11: device.colour", "unknown key"),
            ],
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isp.toml");
        fs::write(&path, "version = 1\nsubscribers = \"s.csv\"\n[isp]\ndevice = \"a\"\n").unwrap();
        fs::write(dir.path().join("s.csv"), "name,addresses,plan\na,x,p\nb,y,p\n").unwrap();
        let error = IspFile::load(&path).unwrap_err();
        assert_eq!(error.all().count(), 2, "{error}");
    }

    /// Property: for any part of a file, the mistakes are errors of that part, and the number of readings is bounded.
    #[test]
    fn any_part_of_a_file_ends_in_errors_of_its_own() {
        let text = include_str!("../../../dist/fairweir.toml");
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)).step_by(7) {
            for without in [0..0, end / 2..end / 2 + 9] {
                let mut part = text[..end].to_owned();
                if part.is_char_boundary(without.start)
                    && part.is_char_boundary(without.end.min(part.len()))
                {
                    part.replace_range(without.start..without.end.min(part.len()), "");
                }
                let lines = part.lines().count().max(1);
                for one in of_host(&part) {
                    let line = one.split(':').nth(1).unwrap().parse::<usize>();
                    assert!(line.is_ok_and(|line| line <= lines + 1), "{one}\n{part}");
                }
            }
        }
    }
}
