//! Matrix decompositions.

use shardax_core::{Number, TriangularSolve};

use super::Array;

/// The matrices of a batch, as rows and columns, one after another.
fn matrices(x: &Array) -> (usize, usize, Vec<Vec<f64>>) {
    let rank = x.ty.rank();
    let (rows, columns) = (x.ty.shape[rank - 2], x.ty.shape[rank - 1]);
    let elements = x.floats();
    let split = elements.chunks(rows * columns).map(<[f64]>::to_vec);
    (rows, columns, split.collect())
}

fn joined(like: &Array, matrices: impl Iterator<Item = Vec<f64>>) -> Array {
    let mut elements = matrices.flatten();
    Array::from_fn(like.ty.clone(), |_| {
        Number::Float(elements.next().expect("an element for each index"))
    })
}

pub(super) fn cholesky(x: &Array) -> Array {
    let (n, _, matrices) = matrices(x);
    let factor = |a: Vec<f64>| {
        let mut l = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let known: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
                let rest = a[i * n + j] - known;
                l[i * n + j] = if i == j {
                    rest.sqrt()
                } else {
                    rest / l[j * n + j]
                };
            }
        }
        l
    };
    joined(x, matrices.into_iter().map(factor))
}

pub(super) fn triangular_solve(solve: TriangularSolve, a: &Array, b: &Array) -> Array {
    let (n, _, systems) = matrices(a);
    let (rows, columns, sides) = matrices(b);
    let one = |(a, b): (Vec<f64>, Vec<f64>)| {
        // The coefficient of unknown `j` in equation `i`; for `x a = b` the equations are columns.
        let swapped = solve.transpose == solve.left;
        let at = |i: usize, j: usize| {
            let (i, j) = if swapped { (j, i) } else { (i, j) };
            let is_read = if solve.lower { i >= j } else { i <= j };
            match i == j && solve.unit_diagonal {
                true => 1.0,
                false if is_read => a[i * n + j],
                false => 0.0,
            }
        };
        let is_lower = solve.lower != swapped;
        let mut x = b;
        let count = if solve.left { columns } else { rows };
        for c in 0..count {
            let index = |i: usize| {
                if solve.left {
                    i * columns + c
                } else {
                    c * columns + i
                }
            };
            for step in 0..n {
                let i = if is_lower { step } else { n - 1 - step };
                let known: f64 = (0..n)
                    .filter(|&j| j != i && (j < i) == is_lower)
                    .map(|j| at(i, j) * x[index(j)])
                    .sum();
                x[index(i)] = (x[index(i)] - known) / at(i, i);
            }
        }
        x
    };
    joined(b, systems.into_iter().zip(sides).map(one))
}

#[test]
fn a_solution_solves_its_system() {
    let a = Array::f64(&[2, 2], [2.0, 7.0, 3.0, 4.0]);
    let b = Array::f64(&[2, 1], [2.0, 11.0]);
    let lower = TriangularSolve {
        left: true,
        lower: true,
        transpose: false,
        unit_diagonal: false,
    };
    // 2 x = 2, 3 x + 4 y = 11; and 2 x + 3 y = 2, 4 y = 11 transposed.
    assert_eq!(triangular_solve(lower, &a, &b).floats(), [1.0, 2.0]);
    let transposed = TriangularSolve {
        transpose: true,
        ..lower
    };
    assert_eq!(
        triangular_solve(transposed, &a, &b).floats(),
        [-3.125, 2.75]
    );
}
