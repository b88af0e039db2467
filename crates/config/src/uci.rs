//! OpenWrt's `/etc/config/fairweir`, written as the TOML that `fairweir router` reads.
//!
//! ```text
//! config router                     [router]
//!         option upload '1'    →    upload = true
//! config device                     [[device]]
//!         option name 'tv'          name = "tv"
//!         list match 'host:tv'      match = ["host:tv"]
//! ```
//! A `config group` belongs to the device above it, a `config schedule` to the device or group above it. Options that are texts in TOML are not known here: the reader
//! of the TOML judges keys and values, and its errors name the line of the UCI file. Source:
//! <https://openwrt.org/docs/guide-user/base-system/uci>.

use std::fmt::Write;
use std::path::Path;

use crate::error::{ConfigError, Origin};
use crate::file::{Rules, Text, Trust};
use crate::host::{Config, Role};
use crate::mistakes;
use crate::table::Source;
use crate::value::parse_dev;
use crate::words::{choices, nearest};

const FILE_BYTES_MAX: u64 = 1 << 18;
/// A section, and the line where it begins.
#[derive(Debug)]
struct Section {
    line: usize,
    kind: String,
    options: Vec<Setting>,
}

/// An `option`, or all values of a `list`.
#[derive(Debug)]
struct Setting {
    line: usize,
    key: String,
    is_list: bool,
    values: Vec<String>,
}

/// The TOML for the file at `path`. The interfaces are those of `lan` and `wan`, separated by
/// spaces, unless the file names others. `None` if the file does not have `option enabled '1'`.
///
/// # Errors
/// If the file cannot be read, others than its owner may write to it, or a router cannot have such a
/// configuration.
pub fn router_toml(path: &Path, lan: &str, wan: &str) -> Result<Option<String>, ConfigError> {
    let rules = Rules { bytes_max: FILE_BYTES_MAX, trust: Trust::OWNER, if_missing: "" };
    let text = Text::read(path, &rules)?;
    judged(text.as_str(), &path.display().to_string(), lan, wan)
}

/// Like [`router_toml`], for a text.
pub(crate) fn judged(
    text: &str,
    file: &str,
    lan: &str,
    wan: &str,
) -> Result<Option<String>, ConfigError> {
    let written = translate(text, file, lan, wan);
    let read = mistakes::all(written.toml.len(), |mends| {
        let source = Source::new(&written.toml, file, &[]).made_from(&written.lines);
        Config::read(Role::Router, &[source.mended(mends)], Vec::new())
    });
    let read = read.err();
    let wrong = written.wrong.into_iter().chain(read.iter().flat_map(ConfigError::all));
    match ConfigError::of_all(wrong.collect()) {
        Some(error) => Err(error),
        None => Ok(written.is_enabled.then_some(written.toml)),
    }
}

/// A configuration in TOML.
#[derive(Debug, Default)]
struct Written {
    toml: String,
    /// For each line of the TOML, the line of the UCI file from which it was made.
    lines: Vec<usize>,
    is_enabled: bool,
    /// Errors in parts that are not in the TOML.
    wrong: Vec<ConfigError>,
}

impl Written {
    /// Adds text that was made from a line.
    fn push(&mut self, line: usize, text: &str) {
        let _ = writeln!(self.toml, "{text}");
        self.lines.extend(std::iter::repeat_n(line, text.lines().count()));
    }
}

fn translate(text: &str, file: &str, lan: &str, wan: &str) -> Written {
    let at = |line: usize, key: &str, what: String| {
        ConfigError::new(Origin::Line { file: file.to_owned(), line }, key, what)
    };
    let mut written = Written::default();
    let (sections, wrong) = parse(text);
    written.wrong.extend(wrong.into_iter().map(|(line, what)| at(line, "", what)));
    let mut routers = sections.iter().filter(|section| section.kind == "router");
    let router = routers.next();
    let duplicate = |section: &Section| {
        at(section.line, "router", "duplicate section; one is allowed".to_owned())
    };
    written.wrong.extend(routers.map(duplicate));
    let line = router.map_or(1, |router| router.line);
    written.push(line, "# Written from UCI; changes here are lost.\nversion = 1\n\n[router]");
    let [lans, wans] = [lan, wan].map(|names| names.split_whitespace().collect::<Vec<_>>());
    let mut names = [("lan", lans, line), ("wan", wans, line)];
    for setting in router.map(|router| &router.options[..]).unwrap_or_default() {
        if let Some(place) = names.iter_mut().find(|(key, ..)| setting.key == *key) {
            *place = (place.0, setting.words(), setting.line);
            continue;
        }
        let value = match setting.one() {
            Ok(value) => value,
            Err(what) => {
                written.wrong.push(at(setting.line, &format!("router.{}", setting.key), what));
                continue;
            }
        };
        let done = match setting.key.as_str() {
            "enabled" => truth(value).map(|truth| written.is_enabled = truth),
            key @ ("upload" | "strict_priority") => {
                truth(value).map(|truth| written.push(setting.line, &format!("{key} = {truth}")))
            }
            // The TOML reader knows all keys except this one.
            key if nearest(key, ["enabled"]).is_some() => {
                Err("unknown key (did you mean `enabled`?)".to_owned())
            }
            key => {
                written.push(setting.line, &pair(key, value));
                Ok(())
            }
        };
        let key = format!("router.{}", setting.key);
        written.wrong.extend(done.err().map(|what| at(setting.line, &key, what)));
    }
    for (key, values, line) in names {
        let devs: Result<Vec<String>, String> =
            values.iter().map(|value| parse_dev(value)).collect();
        let text = match devs {
            Ok(devs) => {
                let texts: Vec<String> = devs.iter().map(|dev| quoted(dev)).collect();
                if let [one] = &texts[..] { one.clone() } else { format!("[{}]", texts.join(", ")) }
            }
            Err(what) => {
                written.wrong.push(at(line, &format!("router.{key}"), what));
                // A name that replaces the wrong one.
                format!("\"right-{key}\"")
            }
        };
        written.push(line, &format!("{key} = {text}"));
    }
    // If the section name of a device is misspelt, its groups are neither written nor reported.
    let (mut has_device, mut has_group, mut is_lost) = (false, false, false);
    for section in sections.iter().filter(|section| section.kind != "router") {
        let header = match section.kind.as_str() {
            "device" => "[[device]]",
            "group" | "schedule" if is_lost => continue,
            "group" if has_device => "[[device.group]]",
            "group" => {
                let what = "no device is above this group; expected `config device` before it";
                written.wrong.push(at(section.line, "group", what.to_owned()));
                continue;
            }
            "schedule" if has_group => "[[device.group.schedule]]",
            "schedule" if has_device => "[[device.schedule]]",
            "schedule" => {
                let what = "no device is above this schedule; expected `config device` before it";
                written.wrong.push(at(section.line, "schedule", what.to_owned()));
                continue;
            }
            kind => {
                let known = choices(kind, &["router", "device", "group", "schedule"]);
                written.wrong.push(at(
                    section.line,
                    "",
                    format!("unknown section `{kind}`{known}"),
                ));
                is_lost |= nearest(kind, ["device"]).is_some();
                continue;
            }
        };
        has_group = header.starts_with("[[device.group");
        (has_device, is_lost) = (true, false);
        written.push(section.line, &format!("\n{header}"));
        for setting in &section.options {
            let key = format!("{}.{}", section.kind, setting.key);
            match setting.of_device() {
                Ok(text) => written.push(setting.line, &text),
                Err(what) => {
                    written.wrong.push(at(setting.line, &key, what));
                    if setting.key == "weight" {
                        written.push(setting.line, "weight = 1");
                    }
                }
            }
        }
    }
    written
}

impl Setting {
    /// The value of an option.
    fn one(&self) -> Result<&str, String> {
        match &self.values[..] {
            [value] if !self.is_list => Ok(value),
            _ => Err("a list; expected `option` with one value".to_owned()),
        }
    }

    /// All values. An option with spaces counts as a list, as in UCI.
    fn words(&self) -> Vec<&str> {
        match self.is_list {
            true => self.values.iter().map(String::as_str).collect(),
            false => self.values.iter().flat_map(|value| value.split_whitespace()).collect(),
        }
    }

    /// The line of TOML for a setting of a device or a group.
    fn of_device(&self) -> Result<String, String> {
        match self.key.as_str() {
            "weight" => {
                let value = self.one()?;
                let weight = value.parse::<u32>();
                let what = |_| format!("`{value}` is not a weight; expected a number such as 2");
                weight.map(|weight| format!("weight = {weight}")).map_err(what)
            }
            "match" => {
                let values: Vec<String> = self.words().into_iter().map(quoted).collect();
                Ok(format!("match = [{}]", values.join(", ")))
            }
            key => Ok(pair(key, self.one()?)),
        }
    }
}

/// A key and its text as TOML.
fn pair(key: &str, value: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let key = match key.is_empty() || !key.chars().all(is_bare) {
        true => quoted(key),
        false => key.to_owned(),
    };
    format!("{key} = {}", quoted(value))
}

fn quoted(text: &str) -> String {
    // JSON's escapes are valid in TOML, except that TOML also needs one for DEL.
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Reads a truth value like `get_bool` of OpenWrt's `/lib/functions.sh`.
fn truth(value: &str) -> Result<bool, String> {
    match value {
        "1" | "on" | "true" | "yes" | "enabled" => Ok(true),
        "0" | "off" | "false" | "no" | "disabled" => Ok(false),
        _ => Err(format!("`{value}` is neither 1 nor 0")),
    }
}

/// The sections of a file, and the lines with errors.
fn parse(text: &str) -> (Vec<Section>, Vec<(usize, String)>) {
    let (mut sections, mut wrong) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        if let Err(what) = parse_line(line, i + 1, &mut sections) {
            wrong.push((i + 1, what));
        }
    }
    (sections, wrong)
}

fn parse_line(line: &str, at: usize, sections: &mut Vec<Section>) -> Result<(), String> {
    let words = words(line)?;
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["package", _] => Ok(()),
        ["config", kind] | ["config", kind, _] => {
            let kind = (*kind).to_owned();
            sections.push(Section { line: at, kind, options: Vec::new() });
            Ok(())
        }
        [word @ ("option" | "list"), key, value] => match sections.last_mut() {
            Some(section) => section.add(at, key, *word == "list", value),
            None => Err(format!("`{word}` before the first `config`")),
        },
        _ => {
            let expected = "expected `config KIND`, `option KEY VALUE` or `list KEY VALUE`";
            Err(format!("this is no line of UCI; {expected}"))
        }
    }
}

impl Section {
    fn add(&mut self, line: usize, key: &str, is_list: bool, value: &str) -> Result<(), String> {
        if let Some(before) = self.options.iter_mut().find(|setting| setting.key == key) {
            if !is_list || !before.is_list {
                return Err(format!("duplicate option `{key}`"));
            }
            before.values.push(value.to_owned());
            return Ok(());
        }
        let (key, values) = (key.to_owned(), vec![value.to_owned()]);
        self.options.push(Setting { line, key, is_list, values });
        Ok(())
    }
}

/// The words of a line, with UCI's quoting: `'as it is'`, `"with \" in it"`, `wi\ th`.
pub(crate) fn words(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut chars) = (Vec::new(), line.chars());
    let mut word: Option<String> = None;
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => break,
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err(format!("no {c} at the end of the value")),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => word.extend(chars.next()),
                        Some(c) => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn toml(text: &str) -> Result<Option<String>, String> {
        judged(text, "fairweir", "br-lan", "wan").map_err(|e| e.to_string())
    }

    #[test]
    fn sections_become_tables() {
        let text = "package fairweir\n\
                    # a comment\n\
                    config router 'main'\n\
                    \toption enabled '1'\n\toption upload on\n\toption upload_capacity \"9500kbit\"\n\
                    \toption wan 'pppoe-wan ds0'\n\tlist lan br-lan\n\tlist lan br-guest\n\n\
                    config device\n\toption name 'tv'\n\toption weight '4'\n\
                    \tlist match 'mac:02:00:5e:00:53:01'\n\tlist match 'host:tv'\n\
                    config group\n\toption name 'video'\n\toption weight 3\n\
                    \toption match 'port:tcp/443 port:udp/443'\n";
        let expected = "# Written from UCI; changes here are lost.\nversion = 1\n\n[router]\n\
                        upload = true\nupload_capacity = \"9500kbit\"\nlan = [\"br-lan\", \"br-guest\"]\n\
                        wan = [\"pppoe-wan\", \"ds0\"]\n\n[[device]]\nname = \"tv\"\nweight = 4\n\
                        match = [\"mac:02:00:5e:00:53:01\", \"host:tv\"]\n\n[[device.group]]\n\
                        name = \"video\"\nweight = 3\n\
                        match = [\"port:tcp/443\", \"port:udp/443\"]\n";
        assert_eq!(toml(text), Ok(Some(expected.to_owned())));
    }

    #[test]
    fn a_router_that_is_not_enabled_has_no_configuration() {
        assert_eq!(toml("config router\n\toption enabled 0\n"), Ok(None));
        assert_eq!(toml(""), Ok(None));
        // A file that is not enabled is still checked.
        assert!(toml("config router\n\toption enabled 0\n\toption uplod 1\n").is_err());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let router = "config router\n";
        for (text, said) in [
            ("option a b\n", "fairweir:1: `option` before the first `config`"),
            ("config router\n\toption enabled 'x\n", "fairweir:2: no ' at the end of the value"),
            ("config router\n\toption uplod 1\n", "did you mean `upload`"),
            ("config router\n\toption enabld 1\n", "did you mean `enabled`"),
            ("config router\n\toption upload maybe\n", "router.upload: `maybe` is neither 1 nor 0"),
            ("config router\n\tlist control none\n", "a list; expected `option`"),
            ("config router\n\toption wan a\n\toption wan b\n", "duplicate option `wan`"),
            ("config router\n\toption wan 'a b/c'\n", "`b/c` is not a name of an interface"),
            ("config router\nconfig router\n", "fairweir:2: router: duplicate section"),
            ("config devise\n", "device"),
            ("config group\n", "no device is above this group"),
            ("config device\n\toption weight -1\n", "`-1` is not a weight"),
            (
                "config device\n\toption name a\n\toption weight 1\n\tlist match ip:192.0.2.7\n\toption colour red\n",
                "fairweir:5: device.colour: unknown key",
            ),
            ("config schedule\n", "no device is above this schedule"),
            ("nonsense\n", "fairweir:1: this is no line of UCI"),
        ] {
            let all = [toml(&format!("{text}{router}")), toml(text)].map(Result::unwrap_err);
            let error = all.join("; ");
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_wrong_value_is_reported_at_its_line() {
        let text = "config device\n\toption name tv\n\toption weight 4\n\tlist match ip:192.0.2.7\n\n\
                    config router\n\toption enabled 1\n\toption wan eth9\n\
                    config group\n\toption name film\n\toption weight 2\n\tlist match port:443\n";
        assert!(toml(text).unwrap().is_some());
        for (from, to, said) in [
            ("enabled 1\n", "enabled 1\n\toption latency 5\n", "fairweir:8: router.latency: "),
            (
                "enabled 1\n",
                "enabled 1\n\toption capacity 30Mbps\n",
                "fairweir:8: router.capacity: ",
            ),
            ("enabled 1\n", "enabled 1\n\toption control crap\n", "fairweir:8: router.control: "),
            ("enabled 1\n", "enabled 1\n\toption probe 127.0.0.1\n", "fairweir:8: router.probe: "),
            ("enabled 1\n", "enabled 1\n\toption metrics x\n", "fairweir:8: router.metrics: "),
            ("enabled 1\n", "enabled 1\n\toption latancy 5ms\n", "did you mean `latency`"),
            (
                "enabled 1\n",
                "enabled 1\n\toption control static\n",
                "fairweir:8: router.control: `static`",
            ),
            ("wan eth9", "wan br-lan", "fairweir:8: router.wan: `wan` is `br-lan`"),
            ("weight 4", "weight 0", "fairweir:3: device.weight: "),
            ("ip:192.0.2.7", "ip:192.0.2", "fairweir:4: device.match: "),
            ("ip:192.0.2.7", "app:steam", "fairweir:4: device.match: "),
            ("\toption weight 4\n", "", "fairweir:1: device.weight: missing"),
            ("port:443", "port:0", "fairweir:12: device.group.match: "),
            ("weight 2", "weight 70000", "fairweir:11: device.group.weight: "),
            (
                "\toption weight 4\n",
                "\toption weight 4\n\toption quota '5 GB'\n",
                "fairweir:4: device.quota: ",
            ),
            (
                "port:443\n",
                "port:443\nconfig schedule\n\toption when 'mon 8'\n\toption max 1mbit\n",
                "fairweir:14: device.group.schedule.when: ",
            ),
            (
                "192.0.2.7\n",
                "192.0.2.7\nconfig schedule\n\toption when 'mon 08:00-09:00'\n",
                "fairweir:5: device.schedule.max: missing",
            ),
        ] {
            let wrong = text.replacen(from, to, 1);
            let error = toml(&wrong).expect_err(&wrong);
            assert!(error.contains(said) && !error.contains('\n'), "{said}\n{error}");
        }
    }

    proptest! {
        #[test]
        fn no_value_leaves_its_string(value in ".{0,40}") {
            let value = value.replace(['\'', '\n', '\r'], "");
            let text = format!("config router\n\toption enabled 1\nconfig device\n\toption name '{value}'\n");
            let written = translate(&text, "fairweir", "br-lan", "wan");
            let table: toml::Table = written.toml.parse().unwrap();
            prop_assert_eq!(written.lines.len(), written.toml.lines().count());
            prop_assert_eq!(table["device"][0]["name"].as_str(), Some(value.as_str()));
            prop_assert_eq!(table.len(), 3);
        }

        #[test]
        fn whatever_a_file_contains_it_is_toml_or_an_error(text in "(config|option|list| |\t|\n|'|\"|\\\\|[a-z1]|router|device|group|enabled|é|\u{7f}){0,60}") {
            let written = translate(&text, "fairweir", "br-lan", "wan");
            prop_assert!(written.toml.parse::<toml::Table>().is_ok(), "{}", written.toml);
        }
    }
}
