//! `pack FILE DIR` writes the inputs in DIR to FILE, the shortest first; `pack -d FILE DIR` writes those of FILE to
//! DIR, one a file.

use std::fs;
use std::io;
use std::path::Path;

#[path = "../corpus.rs"]
mod corpus;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["-d", file, dir] => unpack(Path::new(file), Path::new(dir)),
        [file, dir] => pack(Path::new(file), Path::new(dir)),
        _ => Err(io::Error::other("expected [-d] FILE DIR")),
    }
}

fn unpack(file: &Path, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let inputs = corpus::read(file).map_err(io::Error::other)?;
    for (i, input) in inputs.iter().enumerate() {
        fs::write(dir.join(format!("kept-{i}")), input)?;
    }
    Ok(())
}

fn pack(file: &Path, dir: &Path) -> io::Result<()> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(dir)? {
        inputs.push(fs::read(entry?.path())?);
    }
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    inputs.dedup();
    let lines: String = inputs.iter().map(|input| format!("{}\n", input.escape_ascii())).collect();
    fs::write(file, lines)
}
