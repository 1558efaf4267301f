//! Arrays: how they get to devices and back, and from any sharding to any other, with the least
//! communication.

use std::ops::Range;

use shardax::prelude::*;
use shardax::xla::{Error, Result};
use shardax::{PartitionSpec, Reshard, Runtime, Sharding, TypeTree};

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn on(text: &str, spec: impl Into<PartitionSpec>) -> Sharding {
    Sharding::new(mesh(text), spec.into())
}

fn counting(shape: &[usize]) -> Array {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
    Array::from_slice(&values, shape).unwrap()
}

#[test]
fn explore() -> Result<()> {
    let runtime = Runtime::shared(8)?;
    let x = counting(&[24, 48]);
    for m in ["x=8", "x=2,y=4", "x=2,y=2,z=2"] {
        let names: Vec<String> = mesh(m).axes().iter().map(|a| a.name().to_owned()).collect();
        let mut entries: Vec<Vec<String>> = vec![vec![]];
        for a in &names {
            entries.push(vec![a.clone()]);
            for b in &names {
                if a != b {
                    entries.push(vec![a.clone(), b.clone()]);
                }
            }
        }
        let mut specs = vec![];
        for a in &entries {
            for b in &entries {
                let spec = PartitionSpec::new([a.clone(), b.clone()]);
                if spec.validate(&mesh(m), &[24, 48]).is_empty() {
                    specs.push(spec);
                }
            }
        }
        let (mut at, mut worse) = (0, 0);
        for (i, a) in specs.iter().enumerate() {
            for (j, b) in specs.iter().enumerate() {
                if (i * 31 + j * 17) % (specs.len() / 4 + 1) != 0 {
                    continue;
                }
                let (from, to) = (
                    Sharding::new(mesh(m), a.clone()),
                    Sharding::new(mesh(m), b.clone()),
                );
                let plan = Reshard::plan(&runtime, x.ty(), &from, &to)?;
                println!("{plan}");
                let y = x.put(&runtime, &from)?.put(&runtime, &to)?;
                assert_eq!(y.to_bytes()?, x.to_bytes()?);
                if plan.bytes_sent() > plan.least_bytes() {
                    worse += 1
                } else {
                    at += 1
                }
            }
        }
        println!(
            "== {m}: {} specs, {at} at the bound, {worse} above",
            specs.len()
        );
    }
    Ok(())
}
