//! Documents in which a command writes one part, between two marks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use fairweir_config::output;

/// The marks around the command's part.
const MARKS: (&str, &str) = ("<!-- figures: begin -->\n", "<!-- figures: end -->\n");
/// The folder of pictures next to a document.
const PICTURES: &str = "pictures";

/// A document that contains the command's part.
pub(crate) struct Document<'p> {
    path: &'p Path,
    text: String,
}

impl<'p> Document<'p> {
    /// Reads the document, so that a wrong one is reported before everything is played.
    ///
    /// # Errors
    /// If it cannot be read, or has no marks.
    pub(crate) fn read(path: &'p Path) -> anyhow::Result<Document<'p>> {
        let file = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
        let (begin, end) = (MARKS.0.trim(), MARKS.1.trim());
        rewritten(&text, "")
            .with_context(|| format!("{file} has no lines `{begin}` and `{end}`"))?;
        Ok(Document { path, text })
    }

    /// Writes the section between the marks.
    ///
    /// # Errors
    /// If the document cannot be written.
    pub(crate) fn write(&self, section: &str) -> anyhow::Result<()> {
        let text = rewritten(&self.text, section).expect("invariant: looked at when it was read");
        output::write(self.path, text)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Writes a picture into the document's folder of pictures.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn picture(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.pictures()?.join(name);
        output::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The folder of its pictures.
    fn pictures(&self) -> anyhow::Result<PathBuf> {
        let folder = self.path.parent().unwrap_or(Path::new("")).join(PICTURES);
        output::make_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Copies pictures into the document's folder of pictures, under the name of the collection.
    ///
    /// # Errors
    /// If a picture cannot be read or written.
    pub(crate) fn keep(&self, pictures: &[&str], from: &Path, name: &str) -> anyhow::Result<()> {
        let folder = self.pictures()?;
        for picture in pictures {
            let kept = folder.join(format!("{name}-{picture}"));
            let text = fs::read(from.join(picture));
            text.and_then(|text| output::write(&kept, text))
                .with_context(|| format!("cannot write {}", kept.display()))?;
        }
        Ok(())
    }
}

/// The text with `section` between the marks; `None` if the marks are missing.
fn rewritten(text: &str, section: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS.0)?;
    let (_, after) = rest.split_once(MARKS.1)?;
    Some(format!("{before}{}{section}{}{after}", MARKS.0, MARKS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_is_rewritten() {
        let (begin, end) = MARKS;
        let text = format!("# A\n{begin}old\n{end}the rest\n");
        let once = rewritten(&text, "new\n").unwrap();
        assert_eq!(once, format!("# A\n{begin}new\n{end}the rest\n"));
        assert_eq!(rewritten(&once, "new\n").unwrap(), once);
        assert_eq!(rewritten("# A\n", "new\n"), None);
    }
}
