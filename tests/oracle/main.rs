//! Operations and their derivatives, of single rows and of batches, against JAX.
//!
//! `goldens/ops.json` says what is computed of which inputs, `goldens/ops.bin` holds what JAX
//! computes, and `scripts/oracle_jax.py` writes both. The operations stand in `ops/`, by family.
//! `ORACLE_ONLY=reduce_sum cargo test --test oracle` runs the cases of one operation.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

mod check;
mod differences;
mod golden;
mod ops;

macro_rules! families {
    ($($family:ident),*) => {
        const FAMILIES: &[&str] = &[$(stringify!($family)),*];

        $(
            #[test]
            fn $family() {
                check_family(stringify!($family));
            }
        )*
    };
}

families!(
    control,
    elementwise,
    indexing,
    linear,
    network,
    random,
    reduction
);

fn check_family(family: &str) {
    let only = std::env::var("ORACLE_ONLY").unwrap_or_default();
    for (name, mut cases) in golden::cases() {
        if name == family {
            cases.retain(|case| only.is_empty() || case.op == only);
            check::check(family, &cases);
        }
    }
}

#[test]
fn every_family_is_checked() {
    let cases = golden::cases();
    let names: Vec<&str> = cases.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, FAMILIES);
    let count: usize = cases.iter().map(|(_, cases)| cases.len()).sum();
    assert!(count >= 1500, "{count} cases");
}

/// Primitives without a case: those that compute nothing, those that call what is not a part of
/// the program, running reductions that no function of the library writes, and manual regions, which
/// `tests/manual` compares with one device.
const UNCOMPARED: &[&str] = &[
    "cumulative_and",
    "cumulative_or",
    "shard",
    "optimization_barrier",
    "name",
    "place",
    "manual",
    "psum",
    "pmax",
    "pmin",
    "all_gather",
    "all_gather_invariant",
    "reduce_scatter",
    "all_to_all",
    "ppermute",
    "axis_index",
    "vary",
    "assume_invariant",
    "foreign",
];

#[test]
fn every_primitive_is_in_a_case() -> shardax::xla::Result<()> {
    let cases = golden::cases().into_iter().flat_map(|(_, cases)| cases);
    let (mut operations, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        // One case of each operation has all that it consists of.
        if operations.insert(case.op.clone()) {
            check::primitives(&case, &mut seen)?;
        }
    }
    let all = shardax::ir::catalogue().into_iter().map(|info| info.name);
    let missing: Vec<&str> = all.filter(|name| !seen.contains(name)).collect();
    assert_eq!(missing, UNCOMPARED);
    Ok(())
}
