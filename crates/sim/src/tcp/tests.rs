use fairweir_core::units::{Bytes, Rate, Span};

use crate::scenario::CongestionControl::{self, Bbr, Cubic, Reno, Vegas};

mod world;

use world::{World, WorldSpec};

const ALL: [CongestionControl; 4] = [Reno, Cubic, Vegas, Bbr];

#[test]
fn a_lone_flow_fills_a_fifo_of_one_bdp() {
    let (rate, rtt) = (Rate::mbit(30), Span::millis(30));
    for congestion_control in ALL {
        let mut world = World::new(&WorldSpec::new(rate, rtt, 100));
        world.connect(congestion_control, rtt, None);
        world.run_for(Span::secs(5));
        let before = world.left;
        world.run_for(Span::secs(40));
        let achieved = Rate::from_volume(Bytes::new(world.left - before), Span::secs(40));
        let utilisation = achieved.as_mbit_f64() / rate.as_mbit_f64();
        println!(
            "{congestion_control:?} {utilisation:.4} dropped {} resent {} cwnd {}",
            world.dropped,
            world.flows[0].sender.retransmitted(),
            world.flows[0].sender.cwnd()
        );
        assert!(utilisation >= 0.97, "{congestion_control:?}: {utilisation:.3}");
    }
}
