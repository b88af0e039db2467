//! Rust's side of the structures that BPF programs and user space share, from the type information
//! that clang writes into `bpf/abi.bpf.c`'s object. Nothing of them is written twice, so nothing can
//! differ; the generated code asserts that Rust lays the fields out as clang did.
//!
//! | C | Rust |
//! |---|---|
//! | `struct police_plan` | `PolicePlan`, with the fields in their order |
//! | integers | of the same size and sign; `char` is `u8` |
//! | `__be16`, `__be32` | their bytes; an array of them is one array of bytes |
//! | a union | its bytes; one without a name is `unnamed_` and its offset |

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::HasSize;
use libbpf_rs::btf::types::{self, MemberAttr};
use libbpf_rs::btf::{Btf, BtfKind, BtfType};

/// All structures of an object that have names.
pub(crate) fn of(object: &Path) -> Result<String> {
    let btf = Btf::from_path(object).with_context(|| format!("read {}", object.display()))?;
    let mut code = String::new();
    for structure in btf.type_by_kind::<types::Struct<'_>>() {
        if let Some(name) = structure.name() {
            let name = name.to_str().context("names are ASCII")?;
            code.push_str(&written(&btf, name, &structure).context(name.to_owned())?);
        }
    }
    ensure!(!code.is_empty(), "{} has no type information", object.display());
    Ok(code)
}

fn written(btf: &Btf<'_>, name: &str, structure: &types::Struct<'_>) -> Result<String> {
    let (mut fields, mut asserts) = (String::new(), String::new());
    let rust = camel(name);
    let mut end = 0;
    for member in structure.iter() {
        let MemberAttr::Normal { offset } = member.attr else { bail!("it has bit fields") };
        let offset = offset as usize / 8;
        let ty: BtfType<'_> = btf.type_by_id(member.ty).context("a member has a type")?;
        let Field { ty, size } = field(ty)?;
        let unnamed = format!("unnamed_{offset}");
        let field = member.name.map_or(Some(&*unnamed), |n| n.to_str()).context("ASCII")?;
        ensure!(offset == end, "there is padding before `{field}`; name it");
        end = offset + size;
        writeln!(fields, "    pub(crate) {field}: {ty},")?;
        writeln!(asserts, "    assert!(std::mem::offset_of!({rust}, {field}) == {offset});")?;
    }
    let size = structure.size();
    ensure!(end == size, "there is padding at the end; name it");
    Ok(format!(
        "/// `struct {name}`.\n#[repr(C)]\n#[derive(Clone, Copy, Debug, PartialEq, Eq)]\n\
         pub(crate) struct {rust} {{\n{fields}}}\n\
         const _: () = {{\n    assert!(size_of::<{rust}>() == {size});\n{asserts}}};\n\
         // SAFETY: integers and arrays of them; the build found no padding.\n\
         unsafe impl Plain for {rust} {{}}\n\
         impl Default for {rust} {{\n    fn default() -> {rust} {{\n        {rust}::ZERO\n    }}\n}}\n\n"
    ))
}

struct Field {
    /// As Rust writes it.
    ty: String,
    /// In bytes.
    size: usize,
}

fn field(ty: BtfType<'_>) -> Result<Field> {
    let name = ty.name().and_then(|name| name.to_str());
    let bytes = |size: usize| Field { ty: format!("[u8; {size}]"), size };
    match (ty.kind(), name) {
        (BtfKind::Typedef, Some("__be16")) => Ok(bytes(2)),
        (BtfKind::Typedef, Some("__be32")) => Ok(bytes(4)),
        (BtfKind::Typedef | BtfKind::Const | BtfKind::Volatile, _) => {
            field(ty.next_type().context("it has a type")?)
        }
        (BtfKind::Int, _) => {
            let int = types::Int::try_from(ty).ok().context("an integer")?;
            let is_signed = matches!(int.encoding, types::IntEncoding::Signed) && int.bits > 8;
            let sign = if is_signed { 'i' } else { 'u' };
            Ok(Field { ty: format!("{sign}{}", int.bits), size: usize::from(int.bits) / 8 })
        }
        (BtfKind::Array, _) => {
            let array = types::Array::try_from(ty).ok().context("an array")?;
            let one = field(array.contained_type())?;
            let (count, size) = (array.capacity(), array.capacity() * one.size);
            if one.ty.starts_with("[u8;") {
                return Ok(bytes(size));
            }
            Ok(Field { ty: format!("[{}; {count}]", one.ty), size })
        }
        (BtfKind::Struct, Some(name)) => {
            let size = types::Struct::try_from(ty).ok().context("a structure")?.size();
            Ok(Field { ty: camel(name), size })
        }
        (BtfKind::Union, _) => {
            Ok(bytes(types::Union::try_from(ty).ok().context("a union")?.size()))
        }
        (kind, name) => bail!("user space cannot share a {kind:?} ({})", name.unwrap_or("unnamed")),
    }
}

/// `police_slot_1` becomes `PoliceSlot1`.
fn camel(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase())
            .into_iter()
            .chain(letters)
            .collect::<String>()
    };
    name.split('_').map(word).collect()
}
