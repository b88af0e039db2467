//! Jain's index in windows of 250 ms, computed while packets pass.

/// Bytes that endless flows passed in the present window, and the indices of the windows before.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fairness {
    /// The number of connections of each flow; `None` if the flow does not count.
    connections: Vec<Option<u32>>,
    window: usize,
    bytes: Vec<u64>,
    indices: Vec<f64>,
}

impl Fairness {
    pub(super) fn new(connections: Vec<Option<u32>>) -> Fairness {
        let bytes = vec![0; connections.len()];
        Fairness { connections, window: 0, bytes, indices: Vec::new() }
    }

    /// Adds bytes of a flow that passed in a window; windows come in order.
    pub(super) fn record(&mut self, window: usize, member: usize, bytes: u64) {
        if window != self.window {
            self.indices.extend(self.index());
            self.bytes.fill(0);
            self.window = window;
        }
        self.bytes[member] += bytes;
    }

    /// The indices of all windows in which bytes passed, including the last window.
    pub(super) fn indices(&self) -> Vec<f64> {
        let mut all = self.indices.clone();
        all.extend(self.index());
        all
    }

    /// The index of the present window, if there are flows to compare.
    fn index(&self) -> Option<f64> {
        let flows = self.bytes.iter().zip(&self.connections);
        let rates = flows.filter_map(|(bytes, n)| Some(*bytes as f64 / f64::from((*n)?)));
        let (count, sum, squares) = rates.fold((0.0, 0.0, 0.0), |(count, sum, squares), rate| {
            (count + 1.0, sum + rate, squares + rate * rate)
        });
        (count > 1.0 && squares > 0.0).then(|| sum * sum / (count * squares))
    }
}
