//! The inputs of a fuzz target, as they are kept: a text file with one input a line, escaped as in a byte
//! string of Rust, so that a change can be read and merged.

use std::path::Path;

/// A target's name and what it does with an input.
#[cfg(test)]
#[allow(dead_code, reason = "one crate replays in its own way")]
pub(super) type Target<'n> = (&'n str, fn(&[u8]));

/// Runs the `targets` of the crate `name` on the inputs that are kept for them.
///
/// # Panics
/// If a file cannot be read, or a property does not hold; the input's line is printed before.
#[cfg(test)]
#[allow(dead_code, reason = "one crate replays in its own way")]
pub(super) fn replay(name: &str, targets: &[Target<'_>]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    for (target, run) in targets {
        let path = dir.join(format!("{target}.txt"));
        let inputs = read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(!inputs.is_empty(), "{} is empty", path.display());
        for (i, input) in inputs.iter().enumerate() {
            // Shown by the harness if the test fails.
            println!("{}:{}", path.display(), i + 1);
            run(input);
        }
    }
}

/// The inputs of a file.
///
/// # Errors
/// If it cannot be read, or a line is not escaped as described.
pub(super) fn read(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let line = |(i, line)| unescaped(line).ok_or_else(|| format!("line {} is not escaped", i + 1));
    text.lines().enumerate().map(line).collect()
}

fn unescaped(line: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), line.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (&kind, behind) = rest.split_first()?;
        rest = behind;
        bytes.push(match kind {
            b't' => b'\t',
            b'r' => b'\r',
            b'n' => b'\n',
            b'\\' | b'\'' | b'"' => kind,
            b'x' => {
                let (digits, behind) = rest.split_at_checked(2)?;
                rest = behind;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            _ => return None,
        });
    }
    Some(bytes)
}
