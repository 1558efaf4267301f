//! A program as a function of tensors: what is traced, for one device as for many.

use shardax::{
    DType, Dim, Layout, Leaves, Operand, PartitionSpec, Partitioner, Tensor, cond, custom_jvp,
    custom_vjp, fori_loop, grad, jvp, manual, remat, scan, scan_reverse, switch, value_and_grad,
    vjp, vmap_axes, while_loop,
};

use crate::operations::named;
use crate::program::{AXES, Action, Block, Construct, Form, Place, Program, Split, Statement};

/// The layout of a place.
pub fn layout(place: &Place) -> Result<Layout, shardax::xla::Error> {
    let axes = AXES
        .iter()
        .zip(&place.mesh)
        .map(|(name, size)| (*name, *size));
    let layout = Layout::new(shardax::Mesh::new(axes)?);
    Ok(match place.gspmd {
        true => layout.partitioner(Partitioner::Gspmd),
        false => layout,
    })
}

/// The results of a program, in the order of a list.
pub fn program(program: &Program, inputs: Vec<Tensor>) -> Vec<Tensor> {
    let annotated = inputs.into_iter().zip(&program.inputs);
    let inputs: Vec<Tensor> = annotated
        .map(|(x, input)| match &input.split {
            Some(splits) => x.shard(&dims(splits)),
            None => x,
        })
        .collect();
    let f = |x: &[Tensor]| block(&program.body, x);
    match &program.form {
        Form::Values => f(&inputs),
        Form::Gradient => {
            let loss = |floats: Vec<Tensor>| {
                let results = f(&joined(&inputs, &floats));
                (weighed(&results), results)
            };
            let ((_, mut results), gradients) = value_and_grad(loss)(floats(&inputs));
            results.extend(gradients);
            results
        }
        Form::Forward => {
            let x = floats(&inputs);
            let directions = x.iter().map(|x| direction(*x)).collect();
            let along = |floats: Vec<Tensor>| f(&joined(&inputs, &floats));
            let (mut results, tangents) = jvp(along, x, directions);
            let real = results.iter().zip(tangents);
            let real = real.filter(|(y, _)| y.dtype().is_float());
            let tangents: Vec<Tensor> = real.map(|(_, tangent)| tangent).collect();
            results.extend(tangents);
            results
        }
        Form::Second => {
            let loss = |x: Vec<Tensor>| weighed(&f(&joined(&inputs, &x)));
            let first = |x: Vec<Tensor>| weighed(&grad(loss)(x));
            grad(first)(floats(&inputs))
        }
        Form::Batch { mapped, .. } => {
            let axes: Vec<Option<isize>> = mapped.iter().map(|&m| m.then_some(0)).collect();
            vmap_axes(|x: Vec<Tensor>| f(&x), axes, 0)(inputs)
        }
    }
}

/// The results of a function.
pub fn block(block: &Block, arguments: &[Tensor]) -> Vec<Tensor> {
    let mut values = arguments.to_vec();
    for of in &block.statements {
        let operands: Vec<Tensor> = of.operands.iter().map(|&o| values[o]).collect();
        values.extend(statement(of, &operands));
    }
    block.results.iter().map(|&r| values[r]).collect()
}

/// The results of one line.
pub fn statement(of: &Statement, x: &[Tensor]) -> Vec<Tensor> {
    match &of.action {
        Action::Call { name, parameters } => named(name)
            .map(|operation| (operation.apply)(x, parameters))
            .into_iter()
            .collect(),
        Action::Annotate(splits) => vec![x[0].shard(&dims(splits))],
        Action::Within {
            construct,
            arguments,
            blocks,
        } => within(construct, blocks, &x[..*arguments], &x[*arguments..]),
    }
}

fn within(
    construct: &Construct,
    blocks: &[Block],
    arguments: &[Tensor],
    captured: &[Tensor],
) -> Vec<Tensor> {
    let of = |which: usize, x: &[Tensor]| block(&blocks[which], &[x, captured].concat());
    let f = |x: Vec<Tensor>| of(0, &x);
    let all = arguments.to_vec();
    match construct {
        Construct::Remat => remat(f)(all),
        Construct::Scan {
            carries, reverse, ..
        } => {
            let (start, xs) = arguments.split_at(*carries);
            let step = |h: Vec<Tensor>, x: Vec<Tensor>| {
                let mut next = of(0, &[h, x].concat());
                let ys = next.split_off(*carries);
                (next, ys)
            };
            let (last, ys) = match reverse {
                true => scan_reverse(start.to_vec(), xs.to_vec(), step),
                false => scan(start.to_vec(), xs.to_vec(), step),
            };
            [last, ys].concat()
        }
        Construct::Repeat { times } => {
            fori_loop(Operand::from(0), Operand::from(*times), all, |_, h| f(h))
        }
        Construct::While { times } => {
            let more = |(i, h): (Tensor, Vec<Tensor>)| {
                i.lt(*times) & h[0].cast(DType::F32).abs().sum(..).lt(1000.0)
            };
            let step = |(i, h): (Tensor, Vec<Tensor>)| (i + 1, f(h));
            while_loop((Tensor::scalar(0, DType::I32), all), more, step).1
        }
        Construct::Branch => {
            let first = arguments[0].cast(DType::F32).sum(..).gt(0.1);
            cond(first, all, f, |x: Vec<Tensor>| of(1, &x))
        }
        Construct::Switch => {
            let index = arguments[0].cast(DType::I32).sum(..);
            let branch = |which: usize| move |x: Vec<Tensor>| of(which, &x);
            switch(index, all, (0..blocks.len()).map(branch))
        }
        Construct::Batch { axes } => vmap_axes(f, axes, 0)(all),
        Construct::Backward => custom_vjp(
            f,
            |x: Vec<Tensor>| (f(x.clone()), x),
            |x: Vec<Tensor>, ct: Vec<Tensor>| vjp(f, x).1(ct),
        )(all),
        Construct::Forward => custom_jvp(f, |x: Vec<Tensor>, t: Vec<Tensor>| jvp(f, x, t))(all),
        Construct::Gradient => grad(|x: Vec<Tensor>| weighed(&f(x)))(all),
        Construct::Region {
            axes,
            inputs,
            outputs,
        } => {
            let axes: Vec<&str> = axes.iter().map(|&axis| AXES[axis]).collect();
            let specs = |splits: &[Vec<Split>]| Leaves(splits.iter().map(|s| spec(s)).collect());
            manual(axes, specs(inputs), specs(outputs), f)(all)
        }
    }
}

/// A number that depends on every floating-point element, each in another way.
pub fn weighed(results: &[Tensor]) -> Tensor {
    let floats = results.iter().filter(|y| y.dtype().is_float());
    floats.fold(Tensor::scalar(0, DType::F64), |sum, y| {
        let y = y.cast(DType::F64).flatten();
        let weights = (Tensor::arange(DType::F64, y.size(0)) * 0.7).sin() + 1.2;
        sum + (y * weights).sum(..)
    })
}

/// A direction in which a derivative is taken.
pub fn direction(x: Tensor) -> Tensor {
    let count: usize = x.shape().iter().product();
    let along = (Tensor::arange(DType::F64, count) * 0.9).cos() + 0.3;
    along.reshape(x.shape()).cast(x.dtype())
}

/// The inputs that have a derivative.
pub fn floats(inputs: &[Tensor]) -> Vec<Tensor> {
    let floats = inputs.iter().filter(|x| x.dtype().is_float());
    floats.copied().collect()
}

/// All inputs, of which these are the floating-point ones.
pub fn joined(inputs: &[Tensor], floats: &[Tensor]) -> Vec<Tensor> {
    let mut floats = floats.iter();
    let own = |x: &Tensor| match x.dtype().is_float() {
        true => floats.next().copied().unwrap_or(*x),
        false => *x,
    };
    inputs.iter().map(own).collect()
}

/// The blocks that an array is cut into.
pub fn spec(splits: &[Split]) -> PartitionSpec {
    let names = splits.iter().map(|split| match split {
        Split::Whole | Split::Open => Vec::new(),
        Split::Axes(axes) => axes.iter().map(|&axis| AXES[axis]).collect(),
    });
    names.collect()
}

/// An annotation that directly names mesh axes.
pub fn dims(splits: &[Split]) -> Vec<Dim> {
    let dim = |split: &Split| match split {
        Split::Whole => Dim::Unsharded,
        Split::Open => Dim::Open,
        Split::Axes(axes) => {
            let known = SEVERAL.iter().find(|(numbers, _)| *numbers == &axes[..]);
            known.map_or(Dim::Unsharded, |(_, names)| Dim::Mesh(names))
        }
    };
    splits.iter().map(dim).collect()
}

/// The mesh axes that one dimension is split over, by number and by name.
const SEVERAL: &[(&[usize], &[&str])] = &[
    (&[0], &["a"]),
    (&[1], &["b"]),
    (&[2], &["c"]),
    (&[0, 1], &["a", "b"]),
    (&[1, 0], &["b", "a"]),
    (&[0, 2], &["a", "c"]),
    (&[2, 0], &["c", "a"]),
    (&[1, 2], &["b", "c"]),
    (&[2, 1], &["c", "b"]),
    (&[0, 1, 2], &["a", "b", "c"]),
    (&[2, 1, 0], &["c", "b", "a"]),
];
