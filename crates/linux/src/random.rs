use crate::Error;

/// 64 unpredictable bits.
///
/// # Errors
/// If the kernel gives no random bits.
pub fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    // SAFETY: the call writes at most the length of the buffer.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(Error::last_os("get random bytes"))
    }
}
