//! Numbers for tests, and how they are compared.

use shardax_xla::Array;

/// Numbers between -1 and 1 without a pattern.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let hash = |i: usize| {
        let x = (i as u32 + 1000 * seed).wrapping_mul(0x9e37_79b9) ^ 0x85eb_ca6b;
        let x = (x ^ (x >> 15)).wrapping_mul(0x2c1b_3c6d);
        (x ^ (x >> 12)) as f32 / 2f32.powi(31) - 1.0
    };
    (0..count).map(hash).collect()
}

pub(crate) fn array(values: &[f32], shape: &[usize]) -> Array {
    Array::from_slice(values, shape).unwrap()
}

#[track_caller]
pub(crate) fn assert_close(actual: &Array, expected: &[f64], tolerance: f64) {
    let actual = actual.to_vec::<f32>().unwrap();
    assert_eq!(actual.len(), expected.len());
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(a) - e).abs() <= tolerance,
            "element {i} is {a}, not {e}"
        );
    }
}
