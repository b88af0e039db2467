//! Dense systems of linear equations.

/// A factored dense matrix whose rows were exchanged for the largest pivots.
pub(super) struct Dense {
    rows: Vec<Vec<f64>>,
    order: Vec<usize>,
}

impl Dense {
    /// Factors a square matrix that has these rows.
    pub(super) fn factor(mut rows: Vec<Vec<f64>>) -> Dense {
        let size = rows.len();
        let mut order: Vec<usize> = (0..size).collect();
        for k in 0..size {
            let pivot = (k..size).max_by(|&a, &b| rows[a][k].abs().total_cmp(&rows[b][k].abs()));
            let pivot = pivot.unwrap_or(k);
            rows.swap(k, pivot);
            order.swap(k, pivot);
            let (done, rest) = rows.split_at_mut(k + 1);
            let top = &done[k];
            for row in rest {
                let factor = row[k] / top[k];
                row[k] = factor;
                for j in k + 1..size {
                    row[j] -= factor * top[j];
                }
            }
        }
        Dense { rows, order }
    }

    /// Replaces the right side by the solution; `None` if the matrix is singular.
    pub(super) fn solve(&self, right: &mut [f64]) -> Option<()> {
        let mut x: Vec<f64> = self.order.iter().map(|&i| right[i]).collect();
        let size = x.len();
        for i in 0..size {
            x[i] -= (0..i).map(|j| self.rows[i][j] * x[j]).sum::<f64>();
        }
        for i in (0..size).rev() {
            let known: f64 = (i + 1..size).map(|j| self.rows[i][j] * x[j]).sum();
            x[i] = (x[i] - known) / self.rows[i][i];
        }
        right.copy_from_slice(&x);
        x.iter().all(|x| x.is_finite()).then_some(())
    }
}
