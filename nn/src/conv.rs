//! Convolutions.

use shardax_core::random::Key;
use shardax_core::{ConvOptions, DType, Dim, Leaf, Padding, Path, Tensor, Tree, mistake};

use super::init::weight;

/// A convolution along any number of dimensions, with names for the dimensions of its kernel.
///
/// What it takes is `[batch, channels, space...]`, as [`Tensor::conv`] has it by default. Names are given where the
/// layer is made, as those of [`Linear`](crate::Linear) are.
#[derive(Clone, Debug)]
pub struct Conv<L = Tensor> {
    /// Shape `[output, input / groups, window...]`.
    pub kernel: L,
    /// Shape `[output]`.
    pub bias: Option<L>,
    /// Steps of the window, one number for all dimensions of space; at first 1.
    pub stride: usize,
    /// Elements around `x`; at first [`Padding::Same`].
    pub padding: Padding,
    /// Distance of the window's elements, one number for all dimensions of space; at first 1.
    pub dilation: usize,
    /// Groups of channels that are convolved apart, of which the kernel's shape tells.
    pub groups: usize,
    /// Names of the kernel's dimensions.
    pub names: &'static [Dim],
}

impl Conv {
    /// A convolution of `[input, output]` channels in so many groups, without a bias. A group an input channel is a
    /// depthwise convolution.
    ///
    /// `names` has an entry for each dimension of the kernel, `[output, input / groups, window...]`. Another number of
    /// them, or channels that do not divide by the groups, are mistakes of the traced function.
    ///
    /// ```
    /// use shardax_core::{DType, Dim, Tensor, TensorType, random::Key, trace};
    /// use shardax_nn::Conv;
    ///
    /// const KERNEL: [Dim; 4] = [Dim::Logical("channels"), Dim::Unsharded, Dim::Unsharded, Dim::Unsharded];
    ///
    /// let halved = |image: Tensor| {
    ///     let conv = Conv::init(Key::from_seed(0), [3, 16], 1, &[3, 3], &KERNEL).with_bias();
    ///     Conv { stride: 2, ..conv }.forward(image)
    /// };
    /// let image = TensorType::new(DType::F32, [8, 3, 32, 32]);
    /// assert_eq!(trace(halved, image)?.output_types()[0].to_string(), "f32[8,16,16,16]");
    /// # Ok::<(), shardax_core::Error>(())
    /// ```
    #[track_caller]
    pub fn init(
        key: Key,
        [input, output]: [usize; 2],
        groups: usize,
        window: &[usize],
        names: &'static [Dim],
    ) -> Self {
        let op = "Conv::init";
        if groups == 0 || !input.is_multiple_of(groups) || !output.is_multiple_of(groups) {
            let problem = format!("{groups} groups of {input} channels in and {output} out");
            let help = "give a number of groups that divides both";
            mistake(op, problem, Some(help.to_owned()))
        }
        let mut shape = vec![output, input / groups];
        shape.extend(window);
        if names.len() != shape.len() {
            let problem = format!("{} names for the kernel {shape:?}", names.len());
            let help = "name each dimension, `Dim::Unsharded` where it is never split";
            mistake(op, problem, Some(help.to_owned()))
        }
        Conv {
            kernel: weight(key, &shape, shape[1..].iter().product()),
            bias: None,
            stride: 1,
            padding: Padding::Same,
            dilation: 1,
            groups,
            names,
        }
    }

    /// The same convolution with a bias, at first 0.
    #[track_caller]
    #[must_use]
    pub fn with_bias(self) -> Self {
        let bias = Tensor::zeros(DType::F32, [self.kernel.size(0)]);
        Conv {
            bias: Some(bias),
            ..self
        }
    }

    /// `[batch, input, space...]` to `[batch, output, space...]`.
    #[track_caller]
    pub fn forward(&self, x: Tensor) -> Tensor {
        let along = self.kernel.rank().saturating_sub(2);
        let options = ConvOptions::new()
            .strides(vec![self.stride; along])
            .padding(self.padding.clone())
            .rhs_dilation(vec![self.dilation; along])
            .feature_groups(self.groups);
        let y = x.conv(self.kernel, &options);
        match self.bias {
            Some(bias) => {
                let mut shape = vec![1; y.rank()];
                shape[1] = bias.size(0);
                y + bias.reshape(shape)
            }
            None => y,
        }
    }
}

impl<L> Conv<L> {
    fn bias_names(&self) -> &'static [Dim] {
        self.names.get(..1).unwrap_or_default()
    }
}

/// The annotation differs from one `Conv` to another, so the derive cannot write this.
impl<L: Leaf> Tree<L> for Conv<L> {
    type With<M: Leaf> = Conv<M>;

    fn map_leaves<M: Leaf>(
        &self,
        path: &mut Path,
        f: &mut dyn FnMut(&mut Path, &L) -> M,
    ) -> Conv<M> {
        Conv {
            kernel: path.annotated("kernel", self.names, |path| f(path, &self.kernel)),
            bias: path.annotated("bias", self.bias_names(), |path| {
                self.bias.map_leaves(path, f)
            }),
            stride: self.stride,
            padding: self.padding.clone(),
            dilation: self.dilation,
            groups: self.groups,
            names: self.names,
        }
    }

    fn visit_leaves<'a>(&'a self, path: &mut Path, f: &mut dyn FnMut(&mut Path, &'a L)) {
        path.annotated("kernel", self.names, |path| f(path, &self.kernel));
        path.annotated("bias", self.bias_names(), |path| {
            self.bias.visit_leaves(path, f)
        });
    }

    fn same_structure<M: Leaf>(&self, other: &Conv<M>) -> bool {
        self.bias.is_some() == other.bias.is_some()
            && (self.stride, &self.padding, self.dilation)
                == (other.stride, &other.padding, other.dilation)
            && (self.groups, self.names) == (other.groups, other.names)
    }
}
