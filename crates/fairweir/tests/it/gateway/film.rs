//! MYOB figure 5 with real packets: a film with dash.js in Chromium beside a download; together they have 2 Mbit/s.
//! `cargo test -p fairweir --features evidence --test it figure_5 -- --ignored --nocapture`

use std::path::Path;
use std::process::{Child, Stdio};

use super::*;

const MBIT: u32 = 2;
/// Bitrate of the film: between half and all of the total rate, like the paper's 720p.
const FILM_KBIT: u32 = 1_500;
const SECONDS: u64 = 60;

/// The page reports each second how much was played.
const PAGE: &str = "<!doctype html><video id=v muted></video><script src=dash.js></script><script>
const v = document.getElementById('v'), player = dashjs.MediaPlayer().create();
player.initialize(v, 'film.mpd', true);
setInterval(() => fetch(`report?t=${performance.now() / 1000}&played=${v.currentTime}`)
  .catch(() => 0), 1000);
</script>";

/// A process that is killed when its owner is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds of the film played by the end of each second, if the film's connections have `ratio` times the priority
/// of the download's; `None` means that there is no download.
fn played(by: By, ratio: Option<u32>, film: &Path) -> Vec<f64> {
    let (stage, home) = home(100.0, ["tv", "pc"]);
    let far = Far::with_delay(&stage, "far", "198.51.100.1", None, Duration::from_millis(25));
    let app = |name: &str, alpha: u32| {
        format!(
            "[[app]]\nname = \"{name}\"\nalpha = {alpha}\nmatch = [\"web:{name}.example.com\"]\n"
        )
    };
    let _daemon = match by {
        By::Policing(burst) => {
            police(&stage, MBIT, burst);
            None
        }
        _ => Some(start_proxy(
            &stage,
            &format!(
                "[[class]]\nname = \"all\"\nrate = \"{MBIT}mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n{}{}",
                app("film", 60 * ratio.unwrap_or(1)),
                app("files", 60)
            ),
        )),
    };
    let log = stage.path("requests");
    let _server = far.run(|| {
        // The machine's default may be bbr.
        ip("route replace default dev net congctl cubic");
        let file = fs::File::create(&log).unwrap();
        let mut server = Command::new("python3");
        server.args(["-m", "http.server", "80", "--directory"]).arg(film);
        Process(server.stdout(Stdio::null()).stderr(file).spawn().unwrap())
    });
    thread::sleep(Duration::from_secs(2));
    let download = ratio.map(|_| {
        let mut stream = home[1].run(|| TcpStream::connect(far.address()).unwrap());
        stream.write_all(b"GET / HTTP/1.1\r\nHost: files.example.com\r\n\r\n").unwrap();
        Download::new(stream)
    });
    thread::sleep(Duration::from_secs(4));
    let _browser = home[0].run(|| {
        let mut browser = Command::new("chromium");
        browser.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--autoplay-policy=no-user-gesture-required",
            "--host-resolver-rules=MAP film.example.com 198.51.100.1",
        ]);
        browser.arg(format!("--user-data-dir={}", stage.path("browser").display()));
        browser.arg("http://film.example.com/").stdout(Stdio::null()).stderr(Stdio::null());
        Process(browser.spawn().unwrap())
    });
    thread::sleep(Duration::from_secs(SECONDS + 8));
    drop(download);
    let text = fs::read_to_string(&log).unwrap();
    let mut points = vec![0.0; SECONDS as usize + 1];
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("report?t=") else { continue };
        let (t, rest) = rest.split_once("&played=").unwrap();
        let at: f64 = t.parse().unwrap();
        let played: f64 = rest.split(' ').next().unwrap().parse().unwrap();
        if let Some(point) = points.get_mut(at.round() as usize) {
            *point = played;
        }
    }
    // For a second without a report, the previous value is used.
    for i in 1..points.len() {
        points[i] = points[i].max(points[i - 1]);
    }
    points
}

#[test]
#[ignore = "long: 4 min; needs Chromium, ffmpeg, Python and dash.js; prints the table of figure 5"]
fn figure_5_a_film_beside_a_download() {
    assert!(privileged() && has_nat());
    let film = tempfile::tempdir().unwrap();
    fs::write(film.path().join("index.html"), PAGE).unwrap();
    crate::common::film::make(film.path(), &[FILM_KBIT], SECONDS + 20);
    note("| film : download | played after 15, 30, 45, 60 s | paused |");
    let mut after = Vec::new();
    let rows = [
        (By::Proxy, None),
        (By::Proxy, Some(4)),
        (By::Proxy, Some(2)),
        (By::Proxy, Some(1)),
        (By::Policing(50_000), Some(1)),
    ];
    for pair in rows.chunks(2) {
        let film = film.path();
        let played: Vec<_> = thread::scope(|scope| {
            let play =
                |&(by, ratio): &(By, Option<u32>)| scope.spawn(move || played(by, ratio, film));
            let threads: Vec<_> = pair.iter().map(play).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for ((by, ratio), played) in pair.iter().zip(played) {
            let name = match (by, ratio) {
                (_, None) => "no download".to_owned(),
                (By::Policing(_), _) => "no priorities".to_owned(),
                (_, Some(ratio)) => format!("{ratio} : 1"),
            };
            let [a, b, c, d] = [15, 30, 45, 60].map(|second| played[second]);
            let paused = SECONDS as f64 - d;
            note(&format!("| {name}, {by} | {a:.1}, {b:.1}, {c:.1}, {d:.1} s | {paused:.1} s |"));
            after.push(d);
        }
    }
    let [alone, four, two, one, _] = after[..] else { unreachable!("five rows") };
    assert!(alone >= four - 2.0 && four >= two - 2.0 && two > one + 4.0, "{after:?}");
}
