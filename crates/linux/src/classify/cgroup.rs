//! The cgroup hierarchy (version 2): its mount point, and the existing cgroups.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// The most cgroups that are read.
pub(crate) const CGROUPS_MAX: usize = 65_536;

/// All cgroups at one moment: path below the root, which is `/`, to number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree(BTreeMap<String, u64>);

impl Tree {
    /// Reads the hierarchy below `root`; a cgroup that disappears meanwhile is left out.
    pub(crate) fn read(root: &Path) -> Tree {
        let mut tree = Tree::default();
        if let Ok(metadata) = fs::metadata(root) {
            tree.0.insert("/".to_owned(), metadata.ino());
        }
        let mut pending = vec![(root.to_owned(), String::new())];
        while let Some((folder, path)) = pending.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|t| t.is_dir()) || tree.0.len() >= CGROUPS_MAX {
                    continue;
                }
                let below = format!("{path}/{}", entry.file_name().to_string_lossy());
                // The number of a cgroup is the inode of its folder.
                tree.0.insert(below.clone(), entry.ino());
                pending.push((entry.path(), below));
            }
        }
        tree
    }

    /// The cgroups whose last path component is `name`, as systemd names those of its units.
    pub(crate) fn named<'t>(&'t self, name: &'t str) -> impl Iterator<Item = u64> + 't {
        let matches = move |path: &str| path.rsplit('/').next() == Some(name);
        self.0.iter().filter(move |(path, _)| matches(path)).map(|(_, &id)| id)
    }

    /// The cgroup at `path`.
    pub(crate) fn at(&self, path: &str) -> Option<u64> {
        self.0.get(path).copied()
    }

    /// The path of each cgroup by its number.
    pub(crate) fn paths(&self) -> BTreeMap<u64, &str> {
        self.0.iter().map(|(path, &id)| (id, path.as_str())).collect()
    }
}

/// Where the hierarchy is mounted.
///
/// # Errors
/// [`Error::NoCgroups`] if it is not mounted.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|_| Error::NoCgroups)?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found = fields.filter(|f| f.get(2) == Some(&"cgroup2"));
    found.next().and_then(|f| f.get(1).map(PathBuf::from)).ok_or(Error::NoCgroups)
}

/// The root of the hierarchy, opened to attach programs to it.
pub(crate) fn open_root() -> Result<File, Error> {
    let root = root()?;
    let attempted = || format!("open the cgroup {}", root.display());
    File::open(&root).map_err(|e| Error::refused(attempted(), e))
}
