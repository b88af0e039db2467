//! Paragraphs of the README, the documents, the help and the comments, drawn at random by a seed. A reader
//! says each in other words; a paragraph that is not understood at the first reading needs a rewrite.

use anyhow::Result;

use crate::documents::prose;
use crate::phrases::{comments, files, read};
use crate::root;

/// Shorter texts are labels.
const WORDS_MIN: usize = 12;

/// Prints `count` paragraphs with their places; half of them are from comments.
pub(crate) fn run(count: usize, seed: u64) -> Result<()> {
    let (mut text, mut code) = (Vec::new(), Vec::new());
    let mut documents = files(&root().join("docs"), "md")?;
    documents.push(root().join("README.md"));
    for path in documents {
        let paragraphs = prose(&read(&path)?).collect::<Vec<_>>().join("\n");
        let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        text.extend(paragraphs.split("\n\n").map(|p| (shown.clone(), p.trim().to_owned())));
    }
    for path in files(&root().join("crates"), "rs")? {
        let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        code.extend(
            comments(&read(&path)?).into_iter().map(|(line, c)| (format!("{shown}:{line}"), c)),
        );
    }
    let is_prose = |p: &str| {
        let is_other = ["#", "|", "```", "<!--", "!["].iter().any(|s| p.starts_with(s));
        !is_other && p.split_whitespace().count() >= WORDS_MIN
    };
    text.retain(|(_, p)| is_prose(p));
    code.retain(|(_, p)| is_prose(p));
    let mut state = seed;
    for i in 0..count {
        let from = if i % 2 == 0 { &mut text } else { &mut code };
        if !from.is_empty() {
            let (place, paragraph) =
                from.swap_remove((next(&mut state) % from.len() as u64) as usize);
            println!("{} {place}\n{paragraph}\n", i + 1);
        }
    }
    Ok(())
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
