//! Devices that a router leaves to the proxy on the same gateway.

use super::*;

/// Two devices on a link of 28 Mbit/s; one has twice the weight and is relayed by the proxy.
fn play() -> [f64; 2] {
    let (stage, home) = home(LINK_MBIT, ["tv", "pc"]);
    let far = Far::new(&stage, "far", "198.51.100.1", None);
    let text = "version = 1\n[proxy]\nlan = [\"br-lan\"]\nrouter = true\n";
    fs::write(stage.path("proxy.toml"), text).unwrap();
    let proxy = stage.start_proxy(None);
    let [tv, pc] = &home;
    let device = |device: &Device, weight: u32, more: &str| {
        format!(
            "[[device]]\nname = \"{}\"\nweight = {weight}\nmatch = [\"mac:{}\"]\n{more}",
            device.name, device.mac
        )
    };
    let devices = device(tv, 2, "via = \"proxy\"\n") + &device(pc, 1, "");
    let router = start_router(&stage, "", &devices);
    proxy.wait_for("told", PATIENCE, |s| s["classes"][0]["name"] == "router/tv");
    let downloads = [tv, tv, pc, pc].map(|device| device.download(far.address()));
    thread::sleep(Duration::from_secs(15));
    let received = || downloads.each_ref().map(Download::received);
    let before = received();
    thread::sleep(Duration::from_secs(10));
    let after = received();
    let status = proxy.status();
    assert_eq!(status["accepted"], 2, "{status:#}");
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| (after[i] - before[i]) as f64 * 8e-7);
    note(&format!(
        "tv by the proxy {:.2}, pc {:.2} Mbit/s; the proxy was told {}",
        a + b,
        c + d,
        status["classes"][0]["rate_bps"]
    ));
    // When the router's daemon is gone, no device is left to the proxy.
    router.signal(nix::sys::signal::Signal::SIGKILL);
    proxy.wait_for("the end of what was told", PATIENCE, |s| s["classes"][0]["name"] == "default");
    drop(tv.download(far.address()));
    assert_eq!(proxy.status()["accepted"], 2);
    [a + b, c + d]
}

#[test]
fn a_device_via_the_proxy_has_its_share() {
    if !privileged() || !has_nat() {
        return;
    }
    fairweir_testing::two_of_three(|| {
        let [tv, pc] = play();
        assert!((tv / pc / 2.0 - 1.0).abs() < 0.06, "{tv:.2} and {pc:.2} Mbit/s");
        assert!(tv + pc > 0.9 * LINK_MBIT * 1_448.0 / 1_514.0, "{tv:.2} and {pc:.2} Mbit/s");
    });
}
