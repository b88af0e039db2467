//! What the tests on the real kernel share.
#![allow(dead_code, reason = "each test file uses its part")]

/// Whether the tests may touch the kernel; a skip is loud, and a failure under FAIRWEIR_STRICT=1.
pub(crate) fn privileged() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } == 0 {
        return true;
    }
    eprintln!("SKIPPED: needs root for network namespaces");
    assert!(
        std::env::var_os("FAIRWEIR_STRICT").is_none(),
        "skipped although FAIRWEIR_STRICT is set"
    );
    false
}
