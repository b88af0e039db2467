//! The agreement between `fairweir host` and `fairweir isp`, with real packets.

use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{note, one_at_a_time, privileged, two_of_three};
use serde_json::Value;

use crate::common::access::{ALICE4, Access, SERVER4, SERVER4_OTHER};
use crate::common::stage::{Daemon, Download};

const ISP: &str = r#"version = 1

[isp]
device = "sub"

[[plan]]
name = "home"
download = "20mbit"
upload = "8mbit"
share = "client"

[[subscriber]]
name = "alice"
addresses = ["192.0.2.1", "2001:db8:1::/56"]
plan = "home"
"#;

const HOST: &str = r#"version = 1

[host]
dev = "wan"
divider = "192.0.2.254"

[[group]]
name = "video"
weight = 5
match = ["ip:10.9.0.1"]

[[group]]
name = "backup"
weight = 1
match = ["ip:10.9.0.2"]
"#;

const PATIENCE: Duration = Duration::from_secs(20);
/// Over which a mean is taken.
const SPAN: Duration = Duration::from_secs(10);

/// One connection of a group that weighs 5, and five of a group that weighs 1.
struct Load {
    video: Download,
    backup: Vec<Download>,
}

impl Load {
    fn start(access: &Access) -> Load {
        let backup = (0..5).map(|_| access.download_from(SERVER4_OTHER, ALICE4)).collect();
        Load { video: access.download_from(SERVER4, ALICE4), backup }
    }

    /// What both groups have, in Mbit/s of payload.
    fn over(&self, span: Duration) -> [f64; 2] {
        let received = || {
            let backup: u64 = self.backup.iter().map(Download::received).sum();
            [self.video.received(), backup]
        };
        let (begin, before) = (Instant::now(), received());
        thread::sleep(span);
        let after = received();
        let took = begin.elapsed().as_secs_f64();
        [0, 1].map(|at| (after[at] - before[at]) as f64 * 8e-6 / took)
    }
}

fn stage() -> Access {
    let access = Access::new();
    access.write("isp.toml", ISP);
    access.write("host.toml", HOST);
    access
}

fn divides(status: &Value) -> bool {
    status["divider"]["divides"] == true
}

fn wait_for_agreement(host: &Daemon) {
    host.wait_for("divided by the ISP", PATIENCE, divides);
}

#[test]
fn the_isp_divides_by_the_weights_of_the_host() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| two_of_three(divides_by_weights));
}

fn divides_by_weights() {
    let access = stage();
    let _isp = access.start();
    let host = access.start_host();
    wait_for_agreement(&host);
    let load = Load::start(&access);
    thread::sleep(Duration::from_secs(5));
    let [video, backup] = load.over(SPAN);
    let status = host.status();
    note(&format!("{video:.2} and {backup:.2} Mbit/s of 20; {}", status["divider"]["words"]));
    let shown = access.isp("show alice");
    assert!(shown.contains("weight 5"), "{shown}");
    let part = video / (video + backup);
    assert!((0.78..0.88).contains(&part), "{part:.3} of 5/6; {status:#}\n{shown}");
    assert!((17.0..20.5).contains(&(video + backup)), "{video:.2} + {backup:.2}");
    assert!(divides(&status), "{status:#}");
}
