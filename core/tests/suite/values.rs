//! What every operation computes.

use crate::interpreter::Array;
use crate::support::floats;

#[test]
fn sum() {
    assert_eq!(floats(&[Array::f64(&[2, 2], [1., 2., 3., 4.])], |[x]| x.sum(..)), [10.0]);
}
