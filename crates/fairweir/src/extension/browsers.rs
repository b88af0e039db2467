//! The supported browsers, and where each looks for the manifests of extensions' host programs.
//!
//! Source: <https://developer.chrome.com/docs/extensions/develop/concepts/native-messaging>,
//! <https://developer.mozilla.org/docs/Mozilla/Add-ons/WebExtensions/Native_manifests>; Edge and
//! Brave use the directories of Chromium below their own.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fairweir_config::output;
use serde_json::{Value, json};

use super::{ID_CHROMIUM, ID_FIREFOX, NAME};

/// A browser whose extension can start this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Browser {
    /// Chromium.
    Chromium,
    /// Google Chrome.
    Chrome,
    /// Microsoft Edge.
    Edge,
    /// Brave.
    Brave,
    /// Firefox.
    Firefox,
}

/// The root of the manifests: for all users, or for one user.
#[derive(Debug)]
pub(super) enum Place {
    /// The system's manifests are beneath this directory.
    System(PathBuf),
    /// The user's manifests are beneath this home directory.
    User(PathBuf),
}

impl Browser {
    pub(super) const ALL: [Browser; 5] =
        [Browser::Chromium, Browser::Chrome, Browser::Edge, Browser::Brave, Browser::Firefox];

    /// The browser's directory of manifests for all users, if it reads one.
    fn dir_of_system(self) -> Option<&'static str> {
        match self {
            Browser::Chromium => Some("etc/chromium/native-messaging-hosts"),
            Browser::Chrome => Some("etc/opt/chrome/native-messaging-hosts"),
            Browser::Edge => Some("etc/opt/edge/native-messaging-hosts"),
            Browser::Brave => None,
            Browser::Firefox => Some("usr/lib/mozilla/native-messaging-hosts"),
        }
    }

    /// The browser's directory of manifests beneath a home directory.
    fn dir_of_user(self) -> &'static str {
        match self {
            Browser::Chromium => ".config/chromium/NativeMessagingHosts",
            Browser::Chrome => ".config/google-chrome/NativeMessagingHosts",
            Browser::Edge => ".config/microsoft-edge/NativeMessagingHosts",
            Browser::Brave => ".config/BraveSoftware/Brave-Browser/NativeMessagingHosts",
            Browser::Firefox => ".mozilla/native-messaging-hosts",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Browser::Chromium => &["chromium", "chromium-browser"],
            Browser::Chrome => &["google-chrome", "google-chrome-stable"],
            Browser::Edge => &["microsoft-edge", "microsoft-edge-stable"],
            Browser::Brave => &["brave-browser", "brave"],
            Browser::Firefox => &["firefox", "firefox-esr"],
        }
    }

    /// The browser's package names as a Flatpak and as a snap.
    fn packages(self) -> (&'static str, Option<&'static str>) {
        match self {
            Browser::Chromium => ("org.chromium.Chromium", Some("chromium")),
            Browser::Chrome => ("com.google.Chrome", None),
            Browser::Edge => ("com.microsoft.Edge", None),
            Browser::Brave => ("com.brave.Browser", Some("brave")),
            Browser::Firefox => ("org.mozilla.firefox", Some("firefox")),
        }
    }

    /// Whether one of the browser's programs is in the PATH.
    pub(super) fn is_installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs = std::env::split_paths(&path);
        dirs.any(|dir| self.programs().iter().any(|program| dir.join(program).is_file()))
    }

    /// Paths of installations (Flatpak, snap) that cannot start this program.
    pub(super) fn packaged(self) -> Vec<String> {
        let (flatpak, snap) = self.packages();
        let flatpak = Path::new("/var/lib/flatpak/app").join(flatpak);
        let snap = snap.map(|name| Path::new("/snap").join(name));
        let all = [Some(("Flatpak", flatpak)), snap.map(|path| ("snap", path))];
        let there = all.into_iter().flatten().filter(|(_, path)| path.exists());
        there.map(|(kind, path)| format!("{kind} {}", path.display())).collect()
    }

    /// The manifest that the browser reads about this program.
    pub(super) fn manifest(self, program: &str) -> Value {
        let mut manifest = json!({
            "name": NAME,
            "description": "fairweir: tells the daemon which site a connection belongs to",
            "path": program,
            "type": "stdio",
        });
        match self {
            Browser::Firefox => manifest["allowed_extensions"] = json!([ID_FIREFOX]),
            _ => {
                let origin = format!("chrome-extension://{ID_CHROMIUM}/");
                manifest["allowed_origins"] = json!([origin]);
            }
        }
        manifest
    }
}

impl fmt::Display for Browser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Browser::Chromium => "chromium",
            Browser::Chrome => "chrome",
            Browser::Edge => "edge",
            Browser::Brave => "brave",
            Browser::Firefox => "firefox",
        })
    }
}

impl Place {
    pub(super) fn system(root: Option<&Path>) -> Place {
        Place::System(root.unwrap_or(Path::new("/")).to_owned())
    }

    pub(super) fn user(root: Option<&Path>, home: &Path) -> Place {
        let below = home.strip_prefix("/").unwrap_or(home);
        Place::User(root.map_or_else(|| home.to_owned(), |root| root.join(below)))
    }

    /// The path of the manifest for `browser`.
    pub(super) fn manifest(&self, browser: Browser) -> Option<PathBuf> {
        let dir = match self {
            Place::System(root) => root.join(browser.dir_of_system()?),
            Place::User(home) => home.join(browser.dir_of_user()),
        };
        Some(dir.join(format!("{NAME}.json")))
    }
}

/// The values that `--browser` accepts.
pub(super) fn names() -> String {
    Browser::ALL.map(|browser| browser.to_string()).join(", ")
}

pub(super) fn write(path: &Path, manifest: &Value) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    output::write(path, format!("{manifest:#}\n"))
}

/// Removes a manifest, and directories that are then empty; returns whether there was a manifest.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        removed => removed?,
    }
    // This includes directories of the browser, such as `.config/chromium`.
    let made = path.ancestors().skip(1).take(3);
    let _ = made.map_while(|dir| fs::remove_dir(dir).ok()).count();
    Ok(true)
}

/// Describes the manifest at `path` in a few words.
pub(super) fn state(path: &Path, browser: Browser) -> String {
    let manifest = match fs::read(path) {
        Ok(bytes) => serde_json::from_slice::<Value>(&bytes).unwrap_or_default(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return "not installed".to_owned(),
        Err(e) => return format!("cannot be read: {e}"),
    };
    match manifest["path"].as_str() {
        Some(program) if manifest != browser.manifest(program) => {
            "installed by another version; install it again".to_owned()
        }
        Some(program) if !Path::new(program).is_file() => {
            format!("names {program}, which does not exist; install it again")
        }
        Some(program) => format!("installed, starts {program}"),
        None => "no manifest of fairweir".to_owned(),
    }
}
