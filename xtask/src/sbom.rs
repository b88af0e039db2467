//! The parts of the installed binary: a CycloneDX list for programs, and the licences for people.
//!
//! Both come from `cargo metadata` and the sources that cargo unpacked, so they describe what this
//! checkout's lock file builds. A crate that only runs while building is listed as `excluded`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::root;

/// Writes `fairweir.cdx.json` and `THIRD-PARTY.txt` to the directory. For the static binary they
/// include its libraries.
pub(crate) fn run(out: &Path, is_static: bool) -> Result<()> {
    let mut components = components()?;
    if is_static {
        for library in ARCHIVES {
            components.push(archive(library)?);
        }
    }
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    for (name, text) in [
        ("fairweir.cdx.json", cyclone_dx(&components)?),
        ("THIRD-PARTY.txt", licences(&components)?),
    ] {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// A part of the binary.
#[derive(Clone, Debug)]
struct Component {
    name: String,
    version: String,
    licence: String,
    source: String,
    /// Package URL; `None` for crates of this workspace.
    purl: Option<String>,
    sha256: Option<String>,
    is_linked: bool,
    /// Files with the texts of its licence.
    texts: Vec<std::path::PathBuf>,
    /// A statement for components whose licence text is not in a file.
    statement: &'static str,
}

/// All crates that the binary needs for its build, and the C and JavaScript sources inside of them, by name.
fn components() -> Result<Vec<Component>> {
    let metadata = metadata()?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("read Cargo.lock")?;
    let sums = checksums(&lock);
    let mut packages: HashMap<&str, &Value> = HashMap::new();
    for package in array(&metadata["packages"]) {
        packages.insert(text(&package["id"]), package);
    }
    let linked = reached(&metadata, &packages, &[None])?;
    let needed = reached(&metadata, &packages, &[None, Some("build")])?;
    let mut components = Vec::new();
    for id in &needed {
        let package = packages.get(id.as_str()).context("cargo metadata lacks a package")?;
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let is_ours = package["source"].is_null();
        let directory = Path::new(text(&package["manifest_path"])).parent().unwrap_or(root());
        let component = Component {
            name: name.to_owned(),
            version: version.to_owned(),
            // Old manifests separate alternatives by a slash.
            licence: text(&package["license"]).replace(" / ", " OR ").replace('/', " OR "),
            source: text(&package["repository"]).to_owned(),
            purl: (!is_ours).then(|| format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))),
            sha256: sums.get(&(name.to_owned(), version.to_owned())).cloned(),
            is_linked: linked.contains(id),
            texts: if is_ours { licence_files(root())? } else { licence_files(directory)? },
            statement: "",
        };
        if component.licence.is_empty() {
            bail!("{name} {version} states no licence");
        }
        if component.is_linked {
            components.extend(inside(name, directory)?);
        }
        components.push(component);
    }
    components.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(components)
}

/// The sources in other languages that a crate contains and compiles or embeds.
fn inside(name: &str, directory: &Path) -> Result<Option<Component>> {
    let read = |path: &str| {
        let path = directory.join(path);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let between = |text: &str, before: &str, after: char| -> Result<String> {
        let rest = text.split_once(before).map(|(_, rest)| rest.trim_start());
        let found =
            rest.and_then(|rest| rest.split(after).next()).map(|v| v.trim_matches('"').trim());
        Ok(found.with_context(|| format!("{name}: no version after `{before}`"))?.to_owned())
    };
    let component = |name: &str, version: String, licence: &str, source: &str| Component {
        name: name.to_owned(),
        version,
        licence: licence.to_owned(),
        source: source.to_owned(),
        purl: None,
        sha256: None,
        is_linked: true,
        texts: Vec::new(),
        statement: "",
    };
    Ok(match name {
        "libbpf-sys" => {
            let makefile = read("libbpf/src/Makefile")?;
            let part = |key| between(&makefile, key, '\n');
            let version = [
                part("LIBBPF_MAJOR_VERSION :=")?,
                part("LIBBPF_MINOR_VERSION :=")?,
                part("LIBBPF_PATCH_VERSION :=")?,
            ];
            let licence = "LGPL-2.1-only OR BSD-2-Clause";
            let libbpf =
                component("libbpf", version.join("."), licence, "https://github.com/libbpf/libbpf");
            Some(Component { texts: vec![directory.join("libbpf/LICENSE.BSD-2-Clause")], ..libbpf })
        }
        "libsqlite3-sys" => {
            let version = between(&read("sqlite3/sqlite3.h")?, "#define SQLITE_VERSION ", '\n')?;
            let sqlite = component("sqlite", version, "blessing", "https://sqlite.org");
            Some(Component { statement: "SQLite is in the public domain.", ..sqlite })
        }
        "fairweir" => {
            let version = between(&read("src/page/assets/uplot.js")?, "uPlot (v", ')')?;
            let uplot = component("uplot", version, "MIT", "https://github.com/leeoniya/uPlot");
            Some(Component { statement: UPLOT, ..uplot })
        }
        _ => None,
    })
}

/// A library that `make tarball` links from a Debian package.
fn archive((name, package, licence): (&str, &str, &str)) -> Result<Component> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}", package])
        .output()
        .context("start dpkg-query")?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    if version.is_empty() {
        bail!("{package} is not installed");
    }
    Ok(Component {
        name: name.to_owned(),
        purl: Some(format!("pkg:deb/debian/{package}@{version}")),
        version,
        licence: licence.to_owned(),
        source: format!("https://packages.debian.org/{package}"),
        sha256: None,
        is_linked: true,
        texts: vec![format!("/usr/share/doc/{package}/copyright").into()],
        statement: "",
    })
}

/// Ids of the crates that `fairweir` reaches over edges of these kinds. Procedural macros and their
/// dependencies run in the compiler, so they are reached only together with build scripts.
fn reached(
    metadata: &Value,
    packages: &HashMap<&str, &Value>,
    kinds: &[Option<&str>],
) -> Result<BTreeSet<String>> {
    let nodes: HashMap<&str, &Value> =
        array(&metadata["resolve"]["nodes"]).map(|node| (text(&node["id"]), node)).collect();
    let first = packages.values().find(|package| text(&package["name"]) == "fairweir");
    let first = text(&first.context("no package fairweir")?["id"]);
    let (mut seen, mut left) = (BTreeSet::from([first.to_owned()]), VecDeque::from([first]));
    while let Some(id) = left.pop_front() {
        let node = nodes.get(id).context("cargo metadata lacks a node")?;
        for edge in array(&node["deps"]) {
            let id = text(&edge["pkg"]);
            let counts =
                array(&edge["dep_kinds"]).any(|kind| kinds.contains(&kind["kind"].as_str()));
            let is_macro = packages.get(id).is_some_and(|package| {
                array(&package["targets"])
                    .any(|target| array(&target["kind"]).any(|kind| kind == "proc-macro"))
            });
            let counts = counts && (!is_macro || kinds.contains(&Some("build")));
            if counts && seen.insert(id.to_owned()) {
                left.push_back(id);
            }
        }
    }
    Ok(seen)
}

fn metadata() -> Result<Value> {
    let host = Command::new("rustc").arg("-vV").output().context("start rustc")?;
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    let host =
        host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let output = crate::cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .output()
        .context("start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")
}

/// SHA-256 of each crate's archive from a lock file, by name and version.
fn checksums(lock: &str) -> HashMap<(String, String), String> {
    let mut sums = HashMap::new();
    for package in lock.split("[[package]]") {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_start_matches(" = ").trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            sums.insert((name, version), sum);
        }
    }
    sums
}

/// Files with a licence or a notice in a crate's own directory.
fn licence_files(directory: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = std::fs::read_dir(directory);
    let mut found = Vec::new();
    for entry in entries.with_context(|| format!("read {}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start));
        if is_text && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn cyclone_dx(components: &[Component]) -> Result<String> {
    let this = components.iter().find(|c| c.name == "fairweir").context("no fairweir")?;
    let as_json = |c: &Component| {
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(c),
            "name": c.name,
            "version": c.version,
            "scope": if c.is_linked { "required" } else { "excluded" },
            "licenses": [{ "expression": c.licence }],
        });
        if let Some(purl) = &c.purl {
            component["purl"] = json!(purl);
        }
        if let Some(sum) = &c.sha256 {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        if !c.source.is_empty() {
            component["externalReferences"] = json!([{ "type": "vcs", "url": c.source }]);
        }
        component
    };
    let others = components.iter().filter(|c| c.name != "fairweir");
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": reference(this),
            "name": this.name,
            "version": this.version,
            "licenses": [{ "expression": this.licence }],
        } },
        "components": others.map(as_json).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn reference(component: &Component) -> String {
    let Component { name, version, purl, .. } = component;
    purl.clone().unwrap_or_else(|| format!("{name}@{version}"))
}

/// The linked components with their licences, then each licence text once with the components' names.
fn licences(components: &[Component]) -> Result<String> {
    let mut out = String::from(
        "fairweir contains the following works. Where a licence is a choice (`OR`), any of them\n\
         may be chosen. Their texts follow the list.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for c in components.iter().filter(|c| c.is_linked) {
        let title = format!("{} {}", c.name, c.version);
        writeln!(out, "{title}  {}  {}", c.licence, c.source)?;
        for path in &c.texts {
            let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace('\r', "").trim().to_owned();
            texts.entry(text).or_default().push(title.clone());
        }
        if !c.statement.is_empty() {
            texts.entry(c.statement.to_owned()).or_default().push(title);
        }
    }
    for (text, titles) in texts {
        let titles: Vec<String> = titles.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        write!(out, "\n{}\n{}\n\n{text}\n", "-".repeat(78), titles.join(", "))?;
    }
    Ok(out)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Name, package, licence.
const ARCHIVES: [(&str, &str, &str); 3] = [
    ("glibc", "libc6-dev", "LGPL-2.1-or-later"),
    ("libelf", "libelf-dev", "GPL-2.0-or-later OR LGPL-3.0-or-later"),
    ("zlib", "zlib1g-dev", "Zlib"),
];

const UPLOT: &str = "\
Copyright (c) 2022 Leon Sorokin

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the \"Software\"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_linked_crate_is_listed_with_checksum_and_licence() {
        let components = components().unwrap();
        let find = |name: &str| {
            let found = components.iter().find(|c| c.name == name);
            found.unwrap_or_else(|| panic!("{name} is missing"))
        };
        for name in ["tokio", "axum", "libbpf-sys", "rusqlite"] {
            let component = find(name);
            assert!(
                component.is_linked && component.sha256.as_ref().unwrap().len() == 64,
                "{component:?}"
            );
            assert!(component.licence.contains("MIT") || name == "libbpf-sys", "{component:?}");
        }
        assert!(find("libbpf").version.starts_with("1."), "{:?}", find("libbpf"));
        assert!(find("sqlite").version.starts_with("3."), "{:?}", find("sqlite"));
        assert!(find("uplot").version.starts_with("1."), "{:?}", find("uplot"));
        // Crates that only run while building, and crates that only tests use.
        assert!(!find("libbpf-cargo").is_linked && !find("serde_derive").is_linked);
        assert!(!components.iter().any(|c| c.name == "proptest"));
        assert!(components.iter().all(|c| !c.licence.contains('/')));
    }

    #[test]
    fn each_licence_text_is_printed_once() {
        let text = licences(&components().unwrap()).unwrap();
        assert!(text.contains("tokio 1.") && text.contains("\nuplot 1."));
        assert_eq!(text.matches("SQLite is in the public domain.").count(), 1);
        assert!(!text.contains("serde_derive"));
    }

    #[test]
    fn the_list_names_each_component_once() {
        let document: Value =
            serde_json::from_str(&cyclone_dx(&components().unwrap()).unwrap()).unwrap();
        let references: Vec<&str> =
            array(&document["components"]).map(|c| text(&c["bom-ref"])).collect();
        assert_eq!(references.iter().collect::<BTreeSet<_>>().len(), references.len());
        assert!(references.len() > 100 && document["metadata"]["component"]["name"] == "fairweir");
    }
}
