//! Runs one program on one frame without a device, for tests and benchmarks.

use fairweir_core::units::Span;
use libbpf_rs::{ProgramInput, ProgramMut};

use super::bpf_error;
use crate::Error;

/// What a program did with a frame.
pub(crate) struct Ran {
    /// The value that it returned.
    pub(crate) verdict: i32,
    /// The `struct __sk_buff` after the run.
    pub(crate) context: [u8; CONTEXT_BYTES],
    /// How long one run took.
    pub(crate) span: Span,
}

/// Runs a program `repeat` times on a frame, with these fields of `struct __sk_buff`, each with its offset.
///
/// # Errors
/// If the kernel refuses the frame, for example one without an Ethernet header.
pub(crate) fn run(
    program: &ProgramMut<'_>,
    fields: &[(usize, u32)],
    frame: &[u8],
    repeat: u32,
) -> Result<Ran, Error> {
    let mut context_in = [0; CONTEXT_BYTES];
    for &(at, value) in fields {
        context_in[at..][..4].copy_from_slice(&value.to_ne_bytes());
    }
    let mut context = context_in;
    let input = ProgramInput {
        context_in: Some(&mut context_in),
        context_out: Some(&mut context),
        data_in: Some(frame),
        repeat,
        ..Default::default()
    };
    let output = program.test_run(input).map_err(|e| bpf_error("run a program", &e))?;
    let (verdict, span) = (output.return_value as i32, output.duration);
    Ok(Ran { verdict, context, span: Span::nanos(span.as_nanos() as u64) })
}

/// `struct __sk_buff`, whose layout is part of the kernel's interface.
const CONTEXT_BYTES: usize = 192;
/// The loopback device's index in every namespace.
pub(crate) const LOOPBACK: u32 = 1;
/// TC_ACT_UNSPEC: the next program or the stack handles the packet.
pub(crate) const PASS: i32 = -1;
