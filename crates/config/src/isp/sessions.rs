//! Subscribers that are not listed but reported: the tables `[radius]`, `[coa]` and `[leases]`.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fairweir_core::radius::claims::Source;
use fairweir_core::units::Span;
use ipnet::IpNet;

use super::address::parse_address;
use crate::file::{Rules, Text, Trust};
use crate::{ConfigError, Placed, Table};

/// Table `[radius]`: sessions that access servers report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RadiusSection {
    /// The port for accounting packets.
    pub endpoint: Endpoint,
    /// The plan of sessions whose packets name none.
    pub plan: Option<String>,
    /// The attributes that name the plan; those that take precedence come first.
    pub plan_by: Vec<Source>,
    /// How long a session without packets is kept; `None` to follow the access server's own interval.
    pub stale_after: Option<Span>,
}

/// Table `[coa]`: requests of servers to change and end these sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoaSection {
    /// The port for requests.
    pub endpoint: Endpoint,
    /// Whether every request needs a Message-Authenticator and an Event-Timestamp.
    pub strict: bool,
}

/// A UDP port for RADIUS packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address and port.
    pub listen: SocketAddr,
    /// The addresses that may send packets.
    pub clients: Vec<IpNet>,
    /// The secret that is shared with clients.
    pub secret: Secret,
}

/// Table `[leases]`: files of DHCP servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasesSection {
    /// A file for each server or protocol.
    pub files: Vec<PathBuf>,
    /// The plan of all devices.
    pub plan: String,
}

/// A secret that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The most clients in a list, and the most files of leases.
const CLIENTS_MAX: usize = 256;
const FILES_MAX: usize = 8;
const STALE_RANGE: (Span, Span) = (Span::secs(1), Span::secs(30 * 86_400));
/// Allowed lengths of a secret, in bytes. Source: RFC 2865 §3 prefers 16 bytes at least.
const SECRET_RANGE: std::ops::RangeInclusive<usize> = 16..=128;

impl RadiusSection {
    /// Reads the table of the file at `path`, and the secret. `plans` are the file's.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(
        mut table: Table<'_>,
        path: &Path,
        plans: &[&str],
    ) -> Result<RadiusSection, ConfigError> {
        let endpoint = Endpoint::read(&mut table, path, 1813)?;
        let plan = plan(&mut table, plans)?;
        let plan_by = plan_by(&mut table)?;
        let stale_after = stale_after(&mut table)?;
        table.finish()?;
        Ok(RadiusSection { endpoint, plan, plan_by, stale_after })
    }
}

impl CoaSection {
    /// Reads the table of the file at `path`, and the secret.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(mut table: Table<'_>, path: &Path) -> Result<CoaSection, ConfigError> {
        let endpoint = Endpoint::read(&mut table, path, 3799)?;
        let strict = table.truth("strict")?.unwrap_or_default();
        table.finish()?;
        Ok(CoaSection { endpoint, strict })
    }
}

impl Endpoint {
    fn read(table: &mut Table<'_>, path: &Path, port: u16) -> Result<Endpoint, ConfigError> {
        let wanted = &format!("an address and a port, such as \"192.0.2.10:{port}\"");
        let listen = table.parsed_by("listen", |text| {
            text.parse::<SocketAddr>()
                .ok()
                .filter(|at| at.port() != 0)
                .ok_or_else(|| format!("`{text}` is not {wanted}"))
        })?;
        let listen = listen.ok_or_else(|| table.missing("listen", wanted))?.value;
        let wanted = "a list of access servers, such as [\"192.0.2.20\"]";
        let texts = table.texts("clients")?.ok_or_else(|| table.missing("clients", wanted))?;
        if texts.value.is_empty() || texts.value.len() > CLIENTS_MAX {
            return Err(texts.place.error(format!("expected 1 to {CLIENTS_MAX} access servers")));
        }
        let parsed = |p: &Placed<'_, String>| parse_address(&p.value).map_err(|e| p.place.error(e));
        let clients = texts.value.iter().map(parsed).collect::<Result<_, _>>()?;
        let wanted = "a file with the secret, such as \"radius.secret\"";
        let named =
            table.text("secret_file")?.ok_or_else(|| table.missing("secret_file", wanted))?;
        let secret = secret(&super::beside(path, &named.value))?;
        Ok(Endpoint { listen, clients, secret })
    }
}

impl LeasesSection {
    /// Reads the table of the file at `path`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(
        mut table: Table<'_>,
        path: &Path,
        plans: &[&str],
    ) -> Result<LeasesSection, ConfigError> {
        let wanted = "a list of files, such as [\"/var/lib/misc/dnsmasq.leases\"]";
        let texts = table.texts("files")?.ok_or_else(|| table.missing("files", wanted))?;
        if texts.value.is_empty() || texts.value.len() > FILES_MAX {
            return Err(texts.place.error(format!("expected 1 to {FILES_MAX} files")));
        }
        let files = texts.value.iter().map(|named| super::beside(path, &named.value)).collect();
        let plan = plan(&mut table, plans)?;
        let plan = plan.ok_or_else(|| table.missing("plan", "the name of a [[plan]]"))?;
        table.finish()?;
        Ok(LeasesSection { files, plan })
    }
}

fn plan_by(table: &mut Table<'_>) -> Result<Vec<Source>, ConfigError> {
    let Some(texts) = table.texts("plan_by")? else { return Ok(Source::DEFAULT.to_vec()) };
    let mut sources = Vec::new();
    for Placed { value, place } in texts.value {
        let known = Source::ALL.into_iter().find(|(name, _)| *name == value);
        let Some((_, source)) = known else {
            let near = crate::did_you_mean(&value, Source::ALL.iter().map(|(name, _)| *name));
            let names = Source::ALL.map(|(name, _)| format!("\"{name}\"")).join(", ");
            return Err(place.error(format!("`{value}` is not one of {names}{near}")));
        };
        if sources.contains(&source) {
            return Err(place.error(format!("duplicate `{value}`")));
        }
        sources.push(source);
    }
    Ok(sources)
}

fn stale_after(table: &mut Table<'_>) -> Result<Option<Span>, ConfigError> {
    let Some(Placed { value, place }) = table.parsed::<Span>("stale_after")? else {
        return Ok(None);
    };
    let (least, most) = STALE_RANGE;
    if value < least || value > most {
        return Err(place.error(format!("{value} is out of range ({least} to {most})")));
    }
    Ok(Some(value))
}

fn plan(table: &mut Table<'_>, plans: &[&str]) -> Result<Option<String>, ConfigError> {
    let Some(Placed { value, place }) = table.text("plan")? else { return Ok(None) };
    if !plans.contains(&value.as_str()) {
        let near = crate::did_you_mean(&value, plans.iter().copied());
        return Err(place.error(format!("no [[plan]] `{value}` in this file{near}")));
    }
    Ok(Some(value))
}

/// Reads the first line of a file that other users cannot read.
fn secret(path: &Path) -> Result<Secret, ConfigError> {
    let rules = Rules { bytes_max: 4_096, trust: Trust::OWNER, if_missing: "" };
    let text = Text::read(path, &rules)?;
    let wrong = |what: &str| Err(text.cleared().error(1, None, "secret", what));
    let mode = std::fs::metadata(path).map(|m| m.permissions().mode()).unwrap_or_default();
    if mode & 0o007 != 0 {
        return wrong("other users can read the file; allow its owner alone (chmod 600)");
    }
    let secret = text.as_str().lines().next().unwrap_or_default().trim();
    if !SECRET_RANGE.contains(&secret.len()) {
        let (least, most) = (SECRET_RANGE.start(), SECRET_RANGE.end());
        return wrong(&format!("a secret has {least} to {most} bytes, on the first line"));
    }
    Ok(Secret(secret.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::IspFile;
    use super::*;

    const GOOD: &str = "version = 1
[isp]
device = \"eth1\"
[[plan]]
name = \"home-50\"
download = \"50mbit\"
[radius]
listen = \"192.0.2.10:1813\"
clients = [\"192.0.2.20\", \"2001:db8::/64\"]
secret_file = \"secret\"
plan = \"home-50\"
[leases]
files = [\"dnsmasq.leases\", \"/var/lib/kea/kea-leases6.csv\"]
plan = \"home-50\"
";

    fn load(text: &str, secret: &str, mode: u32) -> Result<IspFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isp.toml");
        fs::write(&path, text).unwrap();
        fs::write(dir.path().join("secret"), secret).unwrap();
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.path().join("secret"), permissions).unwrap();
        let prefix = format!("{}/", dir.path().display());
        IspFile::load(&path).map_err(|e| e.to_string().replace(&prefix, ""))
    }

    #[test]
    fn requests_of_servers_have_clients_and_a_secret_of_their_own() {
        let secret = "sixteen bytes at least";
        let with = |more: &str| load(&format!("{GOOD}[coa]\n{more}"), secret, 0o600);
        let coa = "listen = \"192.0.2.10:3799\"\nclients = [\"192.0.2.30\"]\n\
                   secret_file = \"secret\"\n";
        for (strict, wanted) in [("", false), ("strict = true\n", true)] {
            let coa = with(&format!("{coa}{strict}")).unwrap().coa.unwrap();
            assert_eq!((coa.endpoint.listen.port(), coa.strict), (3799, wanted));
        }
        assert_eq!(load(GOOD, secret, 0o600).unwrap().coa, None);
        let missing = "missing; expected an address and a port, such as \"192.0.2.10:3799\"";
        for (more, wanted) in [
            (String::new(), format!("isp.toml:15: coa.listen: {missing}")),
            (format!("strict = 1\n{coa}"), "isp.toml:16: coa.strict:".to_owned()),
        ] {
            let error = with(&more).unwrap_err();
            assert!(error.starts_with(&wanted), "{error}\n(wanted {wanted})");
        }
        let alone = GOOD.replace("[radius]", "[coa]").replacen("plan = \"home-50\"\n", "", 1);
        let error = load(&alone, secret, 0o600).unwrap_err();
        assert!(error.contains("coa: needs [radius]"), "{error}");
    }

    #[test]
    fn sessions_are_read_and_a_secret_that_others_can_read_is_refused() {
        let secret = "sixteen bytes at least\nmore";
        let file = load(GOOD, secret, 0o600).unwrap();
        let radius = file.radius.unwrap();
        assert_eq!(radius.endpoint.secret.as_bytes(), b"sixteen bytes at least");
        assert!(!format!("{radius:?}").contains("sixteen"));
        let clients = radius.endpoint.clients.len();
        assert_eq!((clients, radius.plan.as_deref()), (2, Some("home-50")));
        assert_eq!((radius.plan_by, radius.stale_after), (Source::DEFAULT.to_vec(), None));
        let with = |more: &str| {
            let text = GOOD.replace("[leases]", &format!("{more}\n[leases]"));
            load(&text, secret, 0o600).map(|file| file.radius.unwrap())
        };
        let radius = with("plan_by = [\"adsl-forum\", \"class\"]\nstale_after = \"3h\"").unwrap();
        assert_eq!(radius.plan_by, [Source::AdslForum, Source::Class]);
        assert_eq!(radius.stale_after, Some(Span::secs(10_800)));
        assert!(with("plan_by = []").unwrap().plan_by.is_empty());
        let leases = file.leases.unwrap();
        assert!(leases.files[0].ends_with("dnsmasq.leases") && leases.files[0].is_absolute());
        for (from, to, secret, mode, wanted) in [
            ("", "", secret, 0o604, "secret:1: secret: other users can read the file"),
            (
                "[leases]",
                "plan_by = [\"class\", \"filterid\"]\n[leases]",
                secret,
                0o600,
                "isp.toml:12: radius.plan_by: `filterid` is not one of \"filter-id\"",
            ),
            (
                "[leases]",
                "plan_by = [\"class\", \"class\"]\n[leases]",
                secret,
                0o600,
                "isp.toml:12: radius.plan_by: duplicate `class`",
            ),
            (
                "[leases]",
                "stale_after = \"31d\"\n[leases]",
                secret,
                0o600,
                "isp.toml:12: radius.stale_after: ",
            ),
            ("", "", "too short", 0o600, "secret:1: secret: a secret has 16 to 128 bytes"),
            (":1813", "", secret, 0o600, "isp.toml:8: radius.listen: `192.0.2.10` is not"),
            (":1813", ":0", secret, 0o600, "isp.toml:8: radius.listen: `192.0.2.10:0` is not"),
            ("192.0.2.20", "x", secret, 0o600, "isp.toml:9: radius.clients: `x` is"),
            ("secret_file", "secret", secret, 0o600, "isp.toml:7: radius.secret_file: missing"),
            (
                "= [\"dnsmasq.leases\", \"/var/lib/kea/kea-leases6.csv\"]",
                "= []",
                secret,
                0o600,
                "isp.toml:13: leases.files: expected 1 to 8 files",
            ),
            (
                "files",
                "file",
                secret,
                0o600,
                "isp.toml:13: leases.file: unknown key (did you mean `files`?)",
            ),
            (
                "secret\"\nplan = \"home-50",
                "secret\"\nplan = \"home-5",
                secret,
                0o600,
                "isp.toml:11: radius.plan: no [[plan]] `home-5` in this file (did you mean `home-50`?)",
            ),
        ] {
            let error = load(&GOOD.replacen(from, to, 1), secret, mode).unwrap_err();
            assert!(error.starts_with(wanted), "{error}\n(wanted {wanted})");
        }
    }
}
