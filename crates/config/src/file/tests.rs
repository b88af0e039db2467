use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::stat::mknod;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;

const RULES: Rules = Rules { bytes_max: 100, trust: Trust::OWNER, if_missing: "; write one" };
/// A user who is not root and has no account on test machines.
const STRANGER: u32 = 4_242_424;

fn error(path: &Path, rules: &Rules) -> String {
    Text::read(path, rules).unwrap_err().to_string()
}

fn written(dir: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    path
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting() {
    let dir = TempDir::new().unwrap();
    let fifo = dir.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let (done, is_done) = mpsc::channel();
    let path = fifo.clone();
    thread::spawn(move || done.send(error(&path, &RULES)));
    // A plain open of a FIFO would wait for a writer.
    let said = is_done.recv_timeout(Duration::from_secs(5)).expect("the FIFO blocks the reader");
    assert_eq!(said, format!("{}: a FIFO; expected a regular file", fifo.display()));
    let said = error(dir.path(), &RULES);
    assert!(said.ends_with(": a directory; expected a regular file"), "{said}");
    let said = error(Path::new("/dev/zero"), &RULES);
    assert_eq!(said, "/dev/zero: a device; expected a regular file");
    let said = error(&dir.path().join("none"), &RULES);
    assert!(said.ends_with("none: cannot read it: no such file or directory; write one"));
}

#[test]
fn no_more_than_the_limit_is_read_of_a_file_that_grows() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, "f", &"x".repeat(100));
    assert_eq!(Text::read(&path, &RULES).unwrap().as_str().len(), 100);
    let path = written(&dir, "f", &"x".repeat(101));
    assert!(error(&path, &RULES).ends_with(": too large; allowed are 100 bytes"));
    // `read_bounded` does not rely on a file's size, which can change and is 0 for pseudo files.
    let said = read_bounded(io::repeat(b'x'), &path, 100).unwrap_err().to_string();
    assert!(said.ends_with(": too large; allowed are 100 bytes"), "{said}");
    let said = error(Path::new("/proc/self/smaps"), &RULES);
    assert_eq!(said, "/proc/self/smaps: too large; allowed are 100 bytes");
}

#[test]
fn root_reads_no_file_that_other_users_can_change() {
    let dir = TempDir::new().unwrap();
    let path = written(&dir, "f", "x");
    let shown = path.display().to_string();
    assert!(Text::read(&path, &RULES).is_ok());
    if !geteuid().is_root() {
        return;
    }
    for (mode, says) in [
        (
            0o664,
            format!(
                "its group may write to it (mode 0664); if its content is right, run `chmod g-w {shown}`"
            ),
        ),
        (
            0o646,
            format!(
                "all users may write to it (mode 0646); if its content is right, run `chmod o-w {shown}`"
            ),
        ),
        (
            0o666,
            format!(
                "its group and all users may write to it (mode 0666); if its content is right, run `chmod go-w {shown}`"
            ),
        ),
    ] {
        set_mode(&path, mode);
        assert_eq!(error(&path, &RULES), format!("{shown}: {says}"));
        let anybody = Rules { trust: Trust::ANYBODY, ..RULES };
        assert!(Text::read(&path, &anybody).is_ok());
        let table = Rules { trust: Trust::NOT_OTHERS, ..RULES };
        assert_eq!(Text::read(&path, &table).is_ok(), mode & 0o002 == 0);
    }
    set_mode(&path, 0o644);
    chown(&path, Some(STRANGER), None).unwrap();
    assert_eq!(
        error(&path, &RULES),
        format!(
            "{shown}: owned by uid {STRANGER}, who can change it; expected root or the calling \
             user: if its content is right, run `chown root {shown}`"
        )
    );
}

#[test]
fn a_directory_that_others_can_change_is_not_read() {
    let dir = TempDir::new().unwrap();
    let conf_d = dir.path().join("conf.d");
    let read = || Text::read_dir(&conf_d, 100).map_err(|e| e.to_string());
    assert_eq!(read().unwrap(), []);
    fs::create_dir(&conf_d).unwrap();
    set_mode(&conf_d, 0o755);
    written(&dir, "conf.d/b.toml", "b");
    written(&dir, "conf.d/a.toml", "a");
    written(&dir, "conf.d/a.toml.bak", "no");
    let texts = read().unwrap();
    assert_eq!(texts.iter().map(|(_, t)| t.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(texts[0].0, conf_d.join("a.toml"));

    for mode in [0o775, 0o757, 0o1777] {
        set_mode(&conf_d, mode);
        let said = read().unwrap_err();
        assert!(said.starts_with(&format!("{}: ", conf_d.display())), "{said}");
        assert!(said.contains(&format!("may write to it (mode {mode:04o})")), "{said}");
    }
    set_mode(&conf_d, 0o755);
    set_mode(&conf_d.join("b.toml"), 0o664);
    let said = read().unwrap_err();
    assert!(said.contains("conf.d/b.toml: its group may write to it"), "{said}");
    set_mode(&conf_d.join("b.toml"), 0o644);
    if geteuid().is_root() {
        chown(&conf_d, Some(STRANGER), None).unwrap();
        let said = read().unwrap_err();
        assert!(said.contains(&format!("conf.d: owned by uid {STRANGER}")), "{said}");
        chown(&conf_d, Some(0), None).unwrap();
        chown(conf_d.join("a.toml"), Some(STRANGER), None).unwrap();
        let said = read().unwrap_err();
        assert!(said.contains(&format!("conf.d/a.toml: owned by uid {STRANGER}")), "{said}");
        chown(conf_d.join("a.toml"), Some(0), None).unwrap();
    }
    assert!(read().is_ok());
}

#[test]
fn links_and_fifos_in_a_directory_are_refused() {
    let dir = TempDir::new().unwrap();
    let conf_d = dir.path().join("conf.d");
    let read = |dir: &Path| Text::read_dir(dir, 100).map_err(|e| e.to_string());
    fs::create_dir(&conf_d).unwrap();
    set_mode(&conf_d, 0o755);
    let link = conf_d.join("x.toml");
    symlink("/etc/shadow", &link).unwrap();
    let said = read(&conf_d).unwrap_err();
    let wanted = "a symbolic link; expected a regular file in this directory";
    assert_eq!(said, format!("{}: {wanted}", link.display()));
    fs::remove_file(&link).unwrap();
    mkfifo(&link, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    assert!(read(&conf_d).unwrap_err().ends_with("x.toml: a FIFO; expected a regular file"));
    fs::remove_file(&link).unwrap();
    if geteuid().is_root() {
        let null = nix::sys::stat::makedev(1, 3);
        mknod(&link, SFlag::S_IFCHR, Mode::S_IRUSR, null).unwrap();
        let said = read(&conf_d).unwrap_err();
        // A temporary directory may be mounted without devices.
        assert!(said.contains("a device") || said.contains("permission denied"), "{said}");
        fs::remove_file(&link).unwrap();
    }
    let other = dir.path().join("other");
    symlink(&conf_d, &other).unwrap();
    assert!(read(&other).unwrap_err().contains("a symbolic link to one is not followed"));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(read(&dir.path().join("file")).unwrap_err().contains("not a directory"));
}

/// Starts itself as a process that another user runs with root's rights.
#[test]
fn text_that_the_calling_user_may_not_read_is_not_in_messages() {
    if let Some(path) = std::env::var_os("FAIRWEIR_TEST_FILE") {
        return say_messages_for(Path::new(&path));
    }
    if !geteuid().is_root() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let secret = written(&dir, "secret", "version = \"hunter2\"\n");
    const NAME: &str = "file::tests::text_that_the_calling_user_may_not_read_is_not_in_messages";
    let messages = |variable: &str, value: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env("FAIRWEIR_TEST_FILE", &secret)
            .env(variable, value)
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let stranger = STRANGER.to_string();
    // Only root may search the directory.
    set_mode(dir.path(), 0o700);
    let said = messages("SUDO_UID", &stranger);
    assert!(!said.contains("hunter2") && said.contains("secret:1: not valid; details"), "{said}");
    let said = messages("PKEXEC_UID", &stranger);
    assert!(!said.contains("hunter2"), "{said}");
    assert!(messages("SUDO_UID", "0").contains("hunter2"), "root may read everything");
    assert!(messages("UNUSED", "").contains("hunter2"), "root may read everything");
    set_mode(dir.path(), 0o755);
    assert!(messages("SUDO_UID", &stranger).contains("hunter2"), "everybody may read it");
    set_mode(&secret, 0o640);
    assert!(!messages("SUDO_UID", &stranger).contains("hunter2"));
    chown(&secret, Some(STRANGER), None).unwrap();
    assert!(messages("SUDO_UID", &stranger).contains("hunter2"), "its owner may read it");
}

fn say_messages_for(path: &Path) {
    let text = Text::read(path, &Rules { trust: Trust::ANYBODY, ..RULES }).unwrap();
    let version = text.source(&[]).top().and_then(|mut top| top.version(1));
    println!("{}", version.unwrap_err());
    println!("{}", text.error(1, None, "x", text.as_str()));
}

#[test]
fn text_in_another_encoding_is_refused_with_its_line() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, b"good\n# caf\xe9\n").unwrap();
    set_mode(&path, 0o644);
    assert!(error(&path, &RULES).ends_with("f:2: text: a byte that is not UTF-8"));
}

#[test]
fn only_stated_writers_are_trusted() {
    let [root, me, other] = [0, 1000, 1001].map(Uid::from_raw);
    let fault = |owner, mode, trust| writers_fault(owner, mode, trust, &[me], Path::new("f"));
    for owner in [root, me] {
        assert_eq!(fault(owner, 0o644, Trust::OWNER), None);
        assert!(fault(owner, 0o664, Trust::OWNER).is_some());
    }
    assert!(fault(other, 0o600, Trust::OWNER).is_some());
    assert_eq!(fault(other, 0o664, Trust::NOT_OTHERS), None);
    assert!(fault(other, 0o666, Trust::NOT_OTHERS).is_some());
    assert_eq!(fault(other, 0o666, Trust::ANYBODY), None);
}
