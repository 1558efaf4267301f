//! Convolutions, pooling, factorizations and Fourier transforms on the CPU plugin: on one device, and
//! split over eight by either partitioner.

use shardax_core::random::Key;
use shardax_core::{
    ConvOptions, DType, Dim, Padding, Pool, Reducer, Tensor, TriangularSolve, grad, vmap,
};
use shardax_sharding::{Layout, Mesh, Partitioner};
use shardax_xla::{Array, Result, jit};

/// Numbers in -1..1 that look random.
fn noise(seed: u64, shape: &[usize]) -> Result<Array> {
    let count: usize = shape.iter().product();
    let numbers = (0..count as u64).map(|i| {
        let mut z = (seed * 7919 + i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 29)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    });
    Array::from_slice(&numbers.collect::<Vec<_>>(), shape)
}

/// The leaves of `f` and of its gradient, equal on one device and split along the first dimension of
/// the argument.
fn everywhere(what: &str, x: &Array, f: fn(Tensor) -> Vec<Tensor>) -> Result<Vec<Vec<f32>>> {
    let program = move |x: Tensor| -> (Vec<Tensor>, Tensor) {
        let mut dims = vec![Dim::Logical("batch")];
        dims.resize(x.rank(), Dim::Unsharded);
        let loss = |x: Tensor| {
            let results = f(x.shard(&dims));
            results
                .into_iter()
                .filter(|t| t.dtype().is_float())
                .fold(Tensor::scalar(0, DType::F32), |sum, t| {
                    sum + (t.sin() * t).cast(DType::F32).sum(..)
                })
        };
        (f(x.shard(&dims)), grad(loss)(x))
    };
    let split = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    let layouts = [
        Layout::single(),
        split.clone(),
        split.partitioner(Partitioner::Gspmd),
    ];
    let mut all = Vec::new();
    for layout in &layouts {
        let (results, gradient) = jit(program).layout(layout).call(x.clone())?;
        let leaves = results.into_iter().chain([gradient]);
        let values: Result<Vec<Vec<f32>>> = leaves.map(|a| a.to_vec::<f32>()).collect();
        all.push(values?);
    }
    for other in &all[1..] {
        for (a, b) in all[0].iter().zip(other) {
            assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{what}: {a} {b}");
            }
        }
    }
    Ok(all.swap_remove(0))
}

#[test]
fn convolutions() -> Result<()> {
    let x = noise(1, &[8, 4, 6, 5])?;
    everywhere("conv", &x, |x| {
        let kernel = x.slice(0, ..6).slice(1, ..2).slice(2, ..3).slice(3, ..2);
        let grouped = ConvOptions::new()
            .feature_groups(2)
            .strides([2, 1])
            .padding([(1, 2), (0, 1)]);
        let dilated = ConvOptions::new()
            .feature_groups(2)
            .lhs_dilation([1, 2])
            .rhs_dilation([2, 1])
            .padding(Padding::Same);
        let groups_of_the_batch = ConvOptions::new().batch_groups(2);
        let last = ConvOptions::new().layouts("NHWC", "HWIO", "NHWC");
        let thin = x.slice(1, ..2);
        vec![
            x.conv(kernel, &grouped),
            x.conv(kernel, &dilated),
            thin.conv(kernel, &groups_of_the_batch),
            x.conv(
                x.slice(0, ..1)
                    .squeeze(0)
                    .expand_dims(3)
                    .slice(0, ..2)
                    .slice(1, ..3),
                &last,
            ),
            thin.conv_transpose(kernel, &ConvOptions::new().strides([2, 3])),
        ]
    })?;
    Ok(())
}

#[test]
fn pooling() -> Result<()> {
    let x = noise(2, &[8, 6, 5])?;
    everywhere("pool", &x, |x| {
        let pool = Pool::new([1, 2], [3, 2])
            .strides([2, 1])
            .padding(Padding::Same);
        let own = pool.clone().count_padding(false);
        let across = Pool::new([0], [3]).strides([1]);
        vec![
            x.max_pool(&pool),
            x.min_pool(&across),
            x.avg_pool(&own),
            x.sum_pool(&Pool::new([1], [2]).dilation([2]).base_dilation([3])),
            x.reduce_window(Reducer::Prod, &pool),
        ]
    })?;
    Ok(())
}

#[test]
fn factorizations() -> Result<()> {
    let x = noise(3, &[8, 3, 3])?;
    let values = everywhere("factors", &x, |x| {
        let count = |axis| Tensor::iota(DType::I32, [3, 3], axis);
        let eye = count(0).eq(count(1)).cast(DType::F32);
        let a = x.matmul(x.swap_axes(-1, -2)) + eye * 2.0;
        let l = a.cholesky();
        let (q, r) = (x + eye * 2.0).qr();
        let upper = TriangularSolve {
            left: false,
            lower: false,
            transpose: true,
            unit_diagonal: false,
        };
        let b = x.slice(1, ..2);
        vec![
            l.matmul(l.swap_axes(-1, -2)) - a,
            q.matmul(r) - (x + eye * 2.0),
            q.swap_axes(-1, -2).matmul(q) - eye,
            a.matmul(a.inv()) - eye,
            r.triangular_solve(b, upper).matmul(r.swap_axes(-1, -2)) - b,
            (a.det().log() - a.slogdet().1) * 1e-1,
        ]
    })?;
    for (i, residual) in values[..6].iter().enumerate() {
        for v in residual {
            assert!(v.abs() < 3e-5, "{i}: {residual:?}");
        }
    }
    let x = noise(4, &[16, 32])?;
    let near = jit(|x: Tensor| {
        let o = x.cast(DType::BF16).orthogonalize(5).cast(DType::F32);
        o.matmul(o.swap_axes(0, 1)).trace()
    });
    let trace = near.call(x)?.item::<f32>()?;
    assert!((10.0..22.0).contains(&trace), "{trace}");
    Ok(())
}

/// The transforms as sums, and through the inverse.
#[test]
fn fourier_transforms() -> Result<()> {
    let x = noise(5, &[8, 4, 5])?;
    let values = everywhere("fft", &x, |x| {
        let z = x.complex(x.square());
        let back = z.fft().ifft() - z;
        let back2 = z.fft2().ifft2() - z;
        let back3 = z.fft3().ifft3() - z;
        let real = x.rfft().irfft(5) - x;
        let real2 = x.rfft2().irfft2(5) - x;
        let real3 = x.rfft3().irfft3(5) - x;
        let even = x.slice(2, ..4).rfft().irfft(4) - x.slice(2, ..4);
        let parts = [back, back2, back3].map(|z| z.abs());
        let spectrum = x.rfft2();
        [
            parts.to_vec(),
            vec![real, real2, real3, even, spectrum.real(), spectrum.imag()],
        ]
        .concat()
    })?;
    for residual in &values[..7] {
        assert!(residual.iter().all(|v| v.abs() < 1e-5), "{residual:?}");
    }
    let direct = jit(|x: Tensor| {
        let n = 6;
        let count = |axis| Tensor::iota(DType::F32, [n, n], axis);
        let angle = count(0) * count(1) * (-2.0 * std::f64::consts::PI / n as f64);
        let matrix = angle.cos().complex(angle.sin());
        let z = x.index(0, 0).complex(x.index(0, 1));
        let slow = |z: Tensor| matrix.dot(z);
        let half = Tensor::constant(&[1f32, 2.0, 2.0, 1.0], [4]) / 6.0;
        // The inverse of a half spectrum: each element and its conjugate.
        let inverse = |z: Tensor| {
            let conj = matrix.slice(1, ..4).conj();
            conj.dot(z * half.cast(DType::C64)).real()
        };
        let real = |z: Tensor| z.real().sin().sum(..) + z.imag().cos().sum(..);
        let pair = |fast: &dyn Fn(Tensor) -> Tensor, slow: &dyn Fn(Tensor) -> Tensor, z: Tensor| {
            let one = grad(|z: Tensor| real(fast(z)))(z) - grad(|z: Tensor| real(slow(z)))(z);
            (fast(z) - slow(z)).abs().max(..) + one.abs().max(..)
        };
        vec![
            pair(&|z| z.fft(), &slow, z),
            pair(
                &|x| x.rfft(),
                &|x| slow(x.cast(DType::C64)).slice(0, ..4),
                x.index(0, 0),
            ),
            pair(&|z| z.irfft(6), &inverse, z.slice(0, ..4)),
        ]
    });
    for (i, difference) in direct.call(noise(6, &[2, 6])?)?.iter().enumerate() {
        assert!(
            difference.item::<f32>()? < 2e-5,
            "{i}: {:?}",
            difference.item::<f32>()?
        );
    }
    Ok(())
}

#[test]
fn draws_do_not_depend_on_devices() -> Result<()> {
    let x = Array::from_slice(&[0.3f32, 1.0, 2.5, 0.01, 7.0, 1.5, 40.0, 0.7], [8])?;
    let split = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    let draws = |alpha: Tensor| {
        let alpha = alpha.shard(&[Dim::Logical("batch")]);
        let keys = Key::from_seed(9).split(7);
        let shape = [64, 8];
        vec![
            keys[0].gamma(alpha, DType::F32, shape),
            keys[1].beta(alpha, 2.0, DType::F32, shape),
            keys[2].dirichlet(alpha, DType::F32, [3]),
            keys[3].permutation(100).cast(DType::F32),
            keys[4].choice(9, [40], true).cast(DType::F32),
            keys[5]
                .choice_weighted(alpha / 60.0, [5], false)
                .cast(DType::F32),
            vmap(|key: Key| key.laplace(DType::F32, [2]))(keys[6].split_array(3)),
        ]
    };
    let one = jit(draws).call(x.clone())?;
    let eight = jit(draws).layout(&split).call(x)?;
    for (i, (a, b)) in one.iter().zip(&eight).enumerate() {
        for (a, b) in a.to_vec::<f32>()?.iter().zip(b.to_vec::<f32>()?) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{i}: {a} {b}");
        }
    }
    let gamma = one[0].to_vec::<f32>()?;
    let mean: f32 = (0..64).map(|i| gamma[i * 8 + 6]).sum::<f32>() / 64.0;
    // Of variance 40: four standard deviations of the mean.
    assert!((mean - 40.0).abs() < 4.0 * (40f32 / 64.0).sqrt(), "{mean}");
    Ok(())
}
