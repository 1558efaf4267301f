//! Linear maps.

use shardax_core::random::Key;
use shardax_core::{DType, Dim, Leaf, Path, Tensor, Tree};

use super::init::weight;

/// `x W + b`, with names for the two dimensions of `W`.
///
/// The names are given where the layer is made, since only there it is known whether its input or
/// its output is, say, the hidden dimension that tensor parallelism splits.
#[derive(Clone, Debug)]
pub struct Linear<L = Tensor> {
    /// Shape `[input, output]`.
    pub weight: L,
    /// Shape `[output]`.
    pub bias: Option<L>,
    /// Names of `[input, output]`.
    names: &'static [Dim; 2],
}

impl Linear {
    /// A map between the named dimensions, without a bias.
    ///
    /// ```
    /// use shardax_core::{Dim, Tensor, random::Key};
    /// use shardax_nn::Linear;
    ///
    /// const EMBED: Dim = Dim::Logical("embed");
    /// const MLP: Dim = Dim::Logical("mlp");
    ///
    /// fn hidden(key: Key, x: Tensor) -> Tensor {
    ///     Linear::init(key, [64, 256], &[EMBED, MLP]).with_bias().forward(x)
    /// }
    /// ```
    #[track_caller]
    pub fn init(key: Key, sizes: [usize; 2], names: &'static [Dim; 2]) -> Self {
        Linear {
            weight: weight(key, &sizes, sizes[0]),
            bias: None,
            names,
        }
    }

    /// The same map with a bias, at first 0.
    #[track_caller]
    #[must_use]
    pub fn with_bias(self) -> Self {
        let bias = Tensor::zeros(DType::F32, [self.weight.size(1)]);
        Linear {
            bias: Some(bias),
            ..self
        }
    }

    /// `x W + b`: `[..., input]` to `[..., output]`.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        let product = x.dot(self.weight);
        match self.bias {
            Some(bias) => product + bias,
            None => product,
        }
    }
}

/// The annotation differs from one `Linear` to another, so the derive cannot write this.
impl<L: Leaf> Tree<L> for Linear<L> {
    type With<M: Leaf> = Linear<M>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Linear<M> {
        Linear {
            weight: path.annotated("weight", self.names, |path| f(path, &self.weight)),
            bias: path.annotated("bias", &self.names[1..], |path| {
                self.bias.map_leaves(path, f)
            }),
            names: self.names,
        }
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        path.annotated("weight", self.names, |path| f(path, &self.weight));
        path.annotated("bias", &self.names[1..], |path| {
            self.bias.visit_leaves(path, f)
        });
    }

    fn same_structure<M: Leaf>(&self, other: &Linear<M>) -> bool {
        self.names == other.names && self.bias.is_some() == other.bias.is_some()
    }
}

#[cfg(test)]
mod tests {
    use shardax_core::{TensorType, trace};

    use super::*;
    use crate::Mlp;

    #[test]
    fn leaves_have_the_names_given_where_the_layer_is_made() -> Result<(), shardax_core::Error> {
        let seed = TensorType::new(DType::U32, [2]);
        let traced = trace(|seed: Tensor| Mlp::init(Key(seed), 4, 16), seed)?;
        let mut types = traced.output_types().into_iter();
        let mut leaves = Vec::new();
        let walk = &mut |path: &mut Path, _: &Tensor| {
            let names: Vec<String> = path
                .dims()
                .unwrap_or_default()
                .iter()
                .map(|dim| match dim {
                    Dim::Logical(name) => (*name).to_owned(),
                    other => format!("{other:?}"),
                })
                .collect();
            let ty = types.next().map(|ty| ty.to_string()).unwrap_or_default();
            leaves.push(format!("{path} {ty} {}", names.join(",")));
        };
        traced.output.visit_leaves(&mut Path::root(), walk);
        assert_eq!(
            leaves,
            [
                "up.weight f32[4,16] embed,mlp",
                "up.bias f32[16] mlp",
                "down.weight f32[16,4] mlp,embed",
                "down.bias f32[4] embed",
            ]
        );
        Ok(())
    }
}
