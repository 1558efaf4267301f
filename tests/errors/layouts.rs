//! Annotations, meshes and layouts.

use shardax::prelude::*;

use super::{Outcome, chapter, ones};

chapter![
    an_annotation_of_another_arity,
    a_field_with_too_few_names,
    dimensions_that_do_not_divide,
    an_unknown_mesh_axis,
    a_mesh_axis_twice,
    more_devices_than_there_are,
    an_array_that_lies_elsewhere,
];

/// An annotation of another arity
///
/// Write a name for each dimension: `#[shard(batch, _)]`.
fn an_annotation_of_another_arity() -> Outcome {
    #[shard]
    fn double(x: Tensor) -> Tensor {
        #[shard(batch)]
        let y = x * 2.0;
        y
    }
    jit(double).call(ones(&[8, 8]))?;
    Ok(())
}

/// A field with too few names
///
/// The annotation says of one model how its arrays lie. Several models side by side, or several layers, are a `Stack` of it.
fn a_field_with_too_few_names() -> Outcome {
    #[derive(Module)]
    struct Linear<L = Tensor> {
        #[shard(embed, mlp)]
        weight: L,
    }
    let ensemble = |model: Linear, x: Tensor| vmap(|m: Linear| x.dot(m.weight))(model);
    let weight = ones(&[4, 8, 16]);
    let layout = Layout::fsdp(Mesh::new([("data", 2)])?)?;
    let step = jit(ensemble).layout(&layout);
    step.call((Linear { weight }, ones(&[2, 8])))?;
    Ok(())
}

/// Dimensions that do not divide
///
/// Every argument, result and value that the layout cannot split is listed, those of one cause together.
fn dimensions_that_do_not_divide() -> Outcome {
    #[derive(Module)]
    struct Mlp<L = Tensor> {
        #[shard(embed, mlp)]
        up: L,
        #[shard(mlp, embed)]
        down: L,
    }
    #[shard]
    fn forward(mlp: Mlp, #[shard(batch, embed)] x: Tensor) -> Tensor {
        x.dot(mlp.up).relu().dot(mlp.down)
    }
    let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    let layout = Layout::new(mesh)
        .shard("batch", "data")
        .shard("mlp", "model");
    let mlp = Mlp {
        up: ones(&[5, 6]),
        down: ones(&[6, 5]),
    };
    jit(forward).layout(&layout).call((mlp, ones(&[3, 5])))?;
    Ok(())
}

/// An unknown axis of the mesh
///
/// Rules lead from names in the model to axes of the mesh; a string in an annotation is an axis itself.
fn an_unknown_mesh_axis() -> Outcome {
    let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    let layout = Layout::new(mesh)
        .shard("batch", "dta")
        .shard("layers", "pipeline");
    jit(|x: Tensor| x * 2.0).layout(&layout).call(ones(&[8]))?;
    Ok(())
}

/// An axis of the mesh twice
///
/// An axis can split one dimension of an array: use another axis for the other, or leave it whole with `_`.
fn a_mesh_axis_twice() -> Outcome {
    #[shard]
    fn outer(x: Tensor) -> Tensor {
        #[shard(embed, mlp)]
        let y = x.expand_dims(1) * x;
        y
    }
    let mesh = Mesh::new([("data", 2), ("model", 4)])?;
    let layout = Layout::new(mesh)
        .shard("embed", "model")
        .shard("mlp", "model");
    jit(outer).layout(&layout).call(ones(&[8]))?;
    Ok(())
}

/// More devices than there are
///
/// The sizes of a mesh multiply to the number of devices.
fn more_devices_than_there_are() -> Outcome {
    let eight = shardax::Runtime::shared(8)?;
    let layout = Layout::new(Mesh::new([("data", 4), ("model", 4)])?);
    let double = jit(|x: Tensor| x * 2.0).layout(&layout).runtime(&eight);
    double.call(ones(&[8]))?;
    Ok(())
}

/// An array that lies elsewhere
///
/// An array of another program is not moved silently. `Array::reshard` moves one, `.place(&layout)` a whole state,
/// `Jit::place` the arguments of a function.
fn an_array_that_lies_elsewhere() -> Outcome {
    #[shard]
    fn double(#[shard(batch)] x: Tensor) -> Tensor {
        x * 2.0
    }
    let layout = Layout::new(Mesh::new([("data", 8)])?).shard("batch", "data");
    let whole = jit(|x: Tensor| x + 1.0).layout(&layout).call(ones(&[8]))?;
    jit(double).layout(&layout).call(whole)?;
    Ok(())
}
