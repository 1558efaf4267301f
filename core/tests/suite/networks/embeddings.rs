//! Embeddings and dropout.

use shardax_core::random::Key;
use shardax_core::{DType, Tensor, grad, nn, remat, value_and_grad};

use super::same;
use crate::interpreter::Array;
use crate::support::{check, check_vmap, eval, floats, noise};

#[test]
fn rows_of_a_table() {
    let functions: [fn(Tensor, Tensor) -> Tensor; 2] = [nn::embedding, nn::embedding_one_hot];
    for embed in functions {
        let table = noise(1, &[4, 2]);
        let t = table.floats();
        let x = [table.clone(), Array::i32(&[2, 2], [3, 0, 4, -1])];
        let found = floats(&x, |[t, i]| embed(i, t));
        let nan = f64::NAN;
        same(&found, &[t[6], t[7], t[0], t[1], nan, nan, nan, nan]);
        // An id outside has no gradient.
        let gradient = floats(&x, |[t, i]| {
            grad(|t: Tensor| {
                let rows = embed(i, t);
                rows.ne(rows).select(0.0, rows).sum(..) + (rows * 0.0).sum(..).stop_gradient()
            })(t)
        });
        same(&gradient, &[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
        check([table.clone()], |[t]| {
            embed(Tensor::constant(&[1i32, 1, 3], [3]), t)
        });
        check_vmap([table, Array::i32(&[2], [1, 2])], |[t, i]| embed(i, t));
        // A type that cannot count the rows.
        let x = [noise(1, &[300, 1]), Array::new(DType::U8, &[1], [255i64])];
        same(
            &floats(&x, |[t, i]| embed(i, t)),
            &noise(1, &[300, 1]).floats()[255..256],
        );
    }
}

#[test]
fn dropout_at_its_ends_and_between() {
    let x = || [Array::f64(&[3], [1.0, f64::INFINITY, -2.0])];
    let drop = |rate: f64| floats(&x(), |[x]| nn::dropout(x, Key::from_seed(1), rate));
    same(&drop(0.0), &[1.0, f64::INFINITY, -2.0]);
    same(&drop(1.0), &[0.0; 3]);
    let many = [Array::f64(&[1000], [1.0; 1000])];
    let found = floats(&many, |[x]| nn::dropout(x, Key::from_seed(7), 0.25));
    let kept = found.iter().filter(|&&v| v == 1.0 / 0.75).count();
    assert_eq!(kept + found.iter().filter(|&&v| v == 0.0).count(), 1000);
    assert!((700..800).contains(&kept), "{kept}");
    check([noise(1, &[8])], |[x]| {
        nn::dropout(x, Key::from_seed(3), 0.5)
    });
}

/// What is computed again draws the same mask: the gradient is nonzero where the value is.
#[test]
fn dropout_under_rematerialization_draws_the_same_mask() {
    let inputs = [noise(1, &[64]), noise(2, &[64])];
    let f = |(x, w): (Tensor, Tensor)| nn::dropout(x * w, Key::from_seed(5), 0.5).sin().sum(..);
    let again = eval(&inputs, |[x, w]| value_and_grad(remat(f))((x, w)));
    let once = eval(&inputs, |[x, w]| value_and_grad(f)((x, w)));
    assert_eq!(again, once);
    let mask = floats(&inputs, |[x, w]| nn::dropout(x * w, Key::from_seed(5), 0.5));
    for (gradient, kept) in again[1].floats().into_iter().zip(mask) {
        assert_eq!(gradient != 0.0, kept != 0.0);
    }
}
