//! A site beside downloads of another one from the same servers (CRAB, figures 9 and 10), on a link of 10 Mbit/s with
//! weights 7 and 3, in real Chromium.
//! `cargo test -p fairweir --features evidence --test it browser::beside -- --ignored --nocapture --test-threads 1`

use std::fs;
use std::path::Path;

use super::*;

/// How a link of 10 Mbit/s treats pages of one site (weight 7) beside downloads of the other (weight 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// One queue for everything, and a daemon with control `none`.
    Fifo,
    /// The same queue, and a daemon with control `fairweir`.
    Controlled,
    /// The ISP divides the link by weight; in this case the downloads come from another port.
    Ideal,
}

impl Link {
    fn apply(self, stage: &Stage) {
        let steps: &[&str] = match self {
            Link::Fifo | Link::Controlled => {
                &["qdisc replace dev isp root tbf rate 10mbit burst 5k limit 125000"]
            }
            Link::Ideal => &[
                "qdisc del dev isp root",
                "qdisc add dev isp root handle 1: htb default 7",
                "class add dev isp parent 1: classid 1:1 htb rate 10mbit burst 5k cburst 5k",
                "class add dev isp parent 1:1 classid 1:7 htb rate 7mbit ceil 10mbit burst 5k cburst 5k",
                "class add dev isp parent 1:1 classid 1:3 htb rate 3mbit ceil 10mbit burst 5k cburst 5k",
                "qdisc add dev isp parent 1:7 bfifo limit 125000",
                "qdisc add dev isp parent 1:3 bfifo limit 125000",
                "filter add dev isp parent 1: protocol ip u32 match ip sport 8443 0xffff flowid 1:3",
            ],
        };
        for step in steps {
            let args = step.split(' ');
            let tc = || Command::new("tc").args(args).status().unwrap();
            assert!(stage.at_internet(tc).success(), "{step}");
        }
    }
}

/// A site in a browser, beside downloads of another site.
struct Play {
    // Dropped in this order.
    _browser: Browser,
    _daemon: Daemon,
    servers: Servers,
    _server: Far,
    stage: Stage,
}

impl Play {
    /// Opens both sites and waits until the control has found the shares. `prepare` may change what the first site
    /// serves, in its directory.
    fn start(link: Link, prepare: impl FnOnce(&Path)) -> Play {
        let stage = Stage::with_link(10.0);
        link.apply(&stage);
        stage.configure(
            "version = 1\n[[group]]\nname = \"site\"\nweight = 7\nmatch = [\"web:video.example.com\"]\n\
             [[group]]\nname = \"bulk\"\nweight = 3\nmatch = [\"web:bulk.example.net\"]\n",
        );
        let control = if link == Link::Controlled { "fairweir" } else { "none" };
        let daemon = stage.start(&["--control", control]);
        let server = far(&stage, Duration::from_millis(15));
        let port = if link == Link::Ideal { PORT_AGAIN } else { 443 };
        let pages = [Page::Images { seed: 1, pause_ms: 1_000 }, Page::Endless { hosts: 2, port }];
        let servers = Servers::with_pages(&stage, &server, Http::Two, pages);
        prepare(&stage.path("nginx/www").join(SITES[0]));
        thread::sleep(LINK_SETTLES);
        let browser = Browser::start(Kind::Chromium, &stage, &servers, true);
        browser.wait_until_heard(&daemon);
        // The site opened last is in the foreground; in a background window Chromium does not start a film.
        SITES.iter().rev().for_each(|site| browser.open(&stage, site));
        let is_there = |site: &str| servers.requests().iter().any(|request| request.site == site);
        wait_for(&stage, &browser, is_there);
        thread::sleep(SETTLE);
        Play { _browser: browser, _daemon: daemon, servers, _server: server, stage }
    }

    /// Returns the rates over `span` of all traffic on the link and of the other site's downloads, in Mbit/s.
    fn watch(&self, span: Duration) -> [f64; 2] {
        let counts = || [self.stage.received(), self.servers.reported()[SITES[1]]];
        let before = counts();
        thread::sleep(span);
        let after = counts();
        [0, 1].map(|i| (after[i] - before[i]) as f64 * 8e-6 / span.as_secs_f64())
    }
}

/// The loading times of pages within `span`, in ms, in rising order.
fn page_loads(link: Link, span: Duration) -> Vec<u64> {
    let play = Play::start(link, |_| {});
    let before = play.servers.loads_ms(SITES[0]).len();
    let [all, bulk] = play.watch(span);
    let mut loads = play.servers.loads_ms(SITES[0]).split_off(before);
    loads.sort_unstable();
    let at = |part: f64| loads[((loads.len() - 1) as f64 * part) as usize];
    let (n, median, p90) = (loads.len(), at(0.5), at(0.9));
    note(&format!("| {link:?} | {n} | {median} ms | {p90} ms | {bulk:.2} of {all:.2} Mbit/s |"));
    loads
}

/// CRAB, figure 10. `cargo test -p fairweir --features evidence --test it pages_load -- --ignored --nocapture`
#[test]
#[ignore = "long: 5 min"]
fn pages_load_sooner_beside_downloads_of_another_site() {
    if !privileged() || !are_installed() {
        return;
    }
    let span = Duration::from_secs(60);
    let median = |link| {
        let loads = one_at_a_time(|| page_loads(link, span));
        loads[loads.len() / 2] as f64
    };
    let [fifo, controlled, ideal] = [Link::Fifo, Link::Controlled, Link::Ideal].map(median);
    assert!(controlled <= 0.6 * fifo, "{controlled} of {fifo} ms");
    assert!(controlled <= 1.05 * ideal, "{controlled} for {ideal} ms");
}

/// The bitrates at which the film is served, in kbit/s; the link could carry the highest one by itself.
const RUNGS: [u32; 6] = [500, 1_000, 2_000, 3_500, 5_000, 8_000];

/// The page reports each second how much was played.
const FILM: &str = "<!doctype html><video id=v muted></video><script src=dash.js></script><script>
const v = document.getElementById('v'), player = dashjs.MediaPlayer().create();
player.initialize(v, 'film.mpd', true);
setInterval(() => fetch(`/report?played_ms=${Math.round(v.currentTime * 1000)}`), 1000);
</script>";

/// The quality of a film in dash.js: its mean bitrate in Mbit/s, and the fraction of the time in which it played.
fn film(link: Link, span: Duration, film: &Path) -> [f64; 2] {
    let play = Play::start(link, |site| {
        for entry in fs::read_dir(film).unwrap().map(Result::unwrap) {
            fs::copy(entry.path(), site.join(entry.file_name())).unwrap();
        }
        fs::write(site.join("index.html"), FILM).unwrap();
    });
    let before = play.servers.requests().len();
    let [all, bulk] = play.watch(span);
    let requests = play.servers.requests().split_off(before);
    let requests: Vec<_> = requests.iter().filter(|request| request.site == SITES[0]).collect();
    let played = requests.iter().filter_map(|r| r.uri.strip_prefix("/report?played_ms="));
    let played: Vec<f64> = played.map(|ms| ms.parse().unwrap()).collect();
    let plays = (played[played.len() - 1] - played[0]) * 1e-3 / (played.len() - 1) as f64;
    // A segment that was requested more than once has the bitrate of the last request.
    let segments: BTreeMap<&str, usize> = requests
        .iter()
        .filter_map(|r| r.uri.strip_prefix("/chunk-stream")?.strip_suffix(".m4s")?.split_once('-'))
        .map(|(stream, segment)| (segment, stream.parse().unwrap()))
        .collect();
    let kbit: u32 = segments.values().map(|&stream| RUNGS[stream]).sum();
    let mbit = f64::from(kbit) * 1e-3 / segments.len() as f64;
    note(&format!(
        "| {link:?} | {} | {mbit:.2} Mbit/s | {:.1} % | {bulk:.2} of {all:.2} Mbit/s |",
        segments.len(),
        plays * 100.0
    ));
    [mbit, plays]
}

/// CRAB, figure 9. `cargo test -p fairweir --features evidence --test it browser::beside::a_film -- --ignored --nocapture`
#[test]
#[ignore = "long: 7 min; needs ffmpeg and dash.js"]
fn a_film_is_better_beside_downloads_of_another_site() {
    if !privileged() || !are_installed() {
        return;
    }
    let (dir, span) = (tempfile::tempdir().unwrap(), Duration::from_secs(100));
    crate::common::film::make(dir.path(), &RUNGS, 180);
    let play = |link| one_at_a_time(|| film(link, span, dir.path()));
    let [fifo, controlled, ideal] = [Link::Fifo, Link::Controlled, Link::Ideal].map(play);
    note(&format!("{:.2} of the rate with HTB (paper: .92 to .94)", controlled[0] / ideal[0]));
    assert!(controlled[0] >= 1.5 * fifo[0], "{controlled:?}, without control {fifo:?}");
    assert!(controlled[1] >= 0.98, "{controlled:?}");
}
