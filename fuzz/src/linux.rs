//! Fuzzes the parser of the BPF programs, built for this machine, against a reference: both must give the same
//! result for a frame, whatever is in memory after it. The tests of `fairweir-linux` compare what the kernel's own
//! run gives for the inputs that are kept.
#![no_main]

#[path = "../packet.rs"]
mod packet;

use packet::Packet;

unsafe extern "C" {
    fn read_packet(bytes: *const u8, length: u32, has_ethernet: i32, out: *mut [u32; 20]);
}

fn read_in_c(frame: &[u8], behind: u8, has_ethernet: bool) -> [u32; 20] {
    let mut out = [0; 20];
    let mut bytes = frame.to_vec();
    bytes.extend([behind; 64]);
    // SAFETY: the frame is within `bytes`, with space after it; `out` has room for the 20 numbers written.
    unsafe {
        read_packet(bytes.as_ptr(), frame.len() as u32, has_ethernet.into(), &raw mut out);
    }
    out
}

fn numbers(p: &Packet) -> [u32; 20] {
    let (source, destination) = p.ports.unwrap_or_default();
    let family = match p.version {
        4 => 2,
        6 => 10,
        _ => 0,
    };
    let mut out = [0; 20];
    out[..12].copy_from_slice(&[
        (family != 0 && !p.is_discovery).into(),
        family,
        p.transport.into(),
        p.ports.is_some().into(),
        p.is_fragment.into(),
        p.tos.into(),
        p.is_discovery.into(),
        source.into(),
        destination.into(),
        p.ip_at as u32,
        p.transport_at as u32,
        p.end as u32,
    ]);
    out[12..16].copy_from_slice(&p.source);
    out[16..].copy_from_slice(&p.destination);
    out
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for has_ethernet in [true, false] {
        let read = read_in_c(data, 0, has_ethernet);
        assert_eq!(read, read_in_c(data, 0xff, has_ethernet), "it reads behind the frame");
        let mut expected = numbers(&Packet::read(data, has_ethernet));
        if expected[1] == 0 {
            // For packets other than IP, the parser sets only the offset where the IP header would begin.
            expected[9] = read[9];
        }
        assert_eq!(read, expected);
    }
});
