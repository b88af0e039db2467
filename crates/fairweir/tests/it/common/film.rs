//! Films for dash.js.

use std::fs;
use std::path::Path;
use std::process::Command;

const DASH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../web/node_modules/dashjs/dist/modern/umd/dash.all.min.js"
);

/// Makes a film in segments of 2 s, with `film.mpd`, and puts `dash.js` beside it. The pictures are small, and each
/// of the `rates`, in kbit/s, is constant.
pub fn make(dir: &Path, rates: &[u32], seconds: u64) {
    fs::copy(DASH, dir.join("dash.js"))
        .unwrap_or_else(|e| panic!("{DASH}: {e}; npm ci --prefix web"));
    let mut command = Command::new("ffmpeg");
    command.args("-v error -f lavfi -i testsrc2=size=320x180:rate=25".split(' '));
    command.args(["-t", &seconds.to_string()]);
    command.args("-c:v libx264 -preset ultrafast -pix_fmt yuv420p".split(' '));
    for (i, rate) in rates.iter().enumerate() {
        let rate = format!("{rate}k");
        command.args(["-map", "0:v"]);
        for limit in ["b", "minrate", "maxrate", "bufsize"] {
            command.args([format!("-{limit}:v:{i}"), rate.clone()]);
        }
    }
    command.args(["-x264-params", "nal-hrd=cbr:force-cfr=1:keyint=50:scenecut=0"]);
    command.args("-f dash -seg_duration 2 -adaptation_sets id=0,streams=v film.mpd".split(' '));
    assert!(command.current_dir(dir).status().unwrap().success());
}
