//! Convolutions of any rank.

use std::panic::Location;

use smallvec::SmallVec;

use super::Tensor;
use super::arithmetic::promote;
use crate::dtype::DType;
use crate::error::{ErrorKind, Source};
use crate::lax;
use crate::op::{Conv, ConvLayout, Dims};
use crate::trace::{fail_at, method};
use crate::types::TensorType;

/// How many elements are added around the spatial dimensions of a convolution or pooling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// None: windows lie inside.
    #[default]
    Valid,
    /// As many that there is a window for each element, or for each stride of them; the odd one after.
    Same,
    /// The same, the odd one before.
    SameLower,
    /// These, before and after each spatial dimension; negative ones cut elements off.
    Explicit(Vec<(i64, i64)>),
}

impl From<Vec<(i64, i64)>> for Padding {
    fn from(padding: Vec<(i64, i64)>) -> Self {
        Padding::Explicit(padding)
    }
}

impl<const N: usize> From<[(i64, i64); N]> for Padding {
    fn from(padding: [(i64, i64); N]) -> Self {
        Padding::Explicit(padding.to_vec())
    }
}

impl Padding {
    /// The elements before and after each dimension, for windows that reach over `reach` of `size`
    /// elements.
    pub(super) fn resolve(
        &self,
        op: &'static str,
        sizes: &[usize],
        reach: &[usize],
        strides: &[usize],
        source: Source,
    ) -> SmallVec<[(i64, i64); 2]> {
        let same = |lower: bool| {
            (0..sizes.len())
                .map(|i| {
                    let windows = sizes[i].div_ceil(strides[i]);
                    let spanned = windows.saturating_sub(1) * strides[i] + reach[i];
                    let total = spanned.saturating_sub(sizes[i]);
                    let before = if lower { total.div_ceil(2) } else { total / 2 };
                    (before as i64, (total - before) as i64)
                })
                .collect()
        };
        match self {
            Padding::Valid => sizes.iter().map(|_| (0, 0)).collect(),
            Padding::Same => same(false),
            Padding::SameLower => same(true),
            Padding::Explicit(padding) => {
                if padding.len() != sizes.len() {
                    let problem = format!(
                        "{} paddings for {} spatial dimensions",
                        padding.len(),
                        sizes.len()
                    );
                    fail_at(ErrorKind::Argument { op, problem }, None, source)
                }
                padding.iter().copied().collect()
            }
        }
    }
}

/// What a convolution is told beside its operands. By default its strides and dilations are 1, it
/// has no padding and one group, and dimensions are batch, features, space; of the kernel features
/// that come out, features that go in, space.
///
/// ```
/// use shardax_core::{ConvOptions, DType, Padding, Tensor, TensorType, trace};
///
/// let options = ConvOptions::new()
///     .layouts("NHWC", "HWIO", "NHWC")
///     .strides([2, 2])
///     .padding(Padding::Same);
/// let program = trace(
///     |image: Tensor, kernel: Tensor| image.conv(kernel, &options),
///     (
///         TensorType::new(DType::F32, [8, 32, 32, 3]),
///         TensorType::new(DType::F32, [3, 3, 3, 16]),
///     ),
/// )?;
/// assert_eq!(program.output_types()[0].to_string(), "f32[8,16,16,16]");
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConvOptions {
    strides: Option<Dims>,
    padding: Padding,
    lhs_dilation: Option<Dims>,
    rhs_dilation: Option<Dims>,
    feature_groups: Option<usize>,
    batch_groups: Option<usize>,
    layouts: Option<[String; 3]>,
    result: Option<DType>,
}

impl ConvOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Steps of the kernel, by spatial dimension.
    #[must_use]
    pub fn strides(mut self, strides: impl AsRef<[usize]>) -> Self {
        self.strides = Some(Dims::from_slice(strides.as_ref()));
        self
    }

    /// Elements around the operand.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Distances of the operand's elements, between which zeros are put.
    #[must_use]
    pub fn lhs_dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.lhs_dilation = Some(Dims::from_slice(dilation.as_ref()));
        self
    }

    /// Distances of the kernel's elements ("atrous" convolution).
    #[must_use]
    pub fn rhs_dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.rhs_dilation = Some(Dims::from_slice(dilation.as_ref()));
        self
    }

    /// Groups of features that are convolved apart; as many as there are features, for a depthwise
    /// convolution.
    #[must_use]
    pub fn feature_groups(mut self, groups: usize) -> Self {
        self.feature_groups = Some(groups);
        self
    }

    /// Groups of the batch that are convolved apart, each with its share of the kernel's features.
    #[must_use]
    pub fn batch_groups(mut self, groups: usize) -> Self {
        self.batch_groups = Some(groups);
        self
    }

    /// What the dimensions of operand, kernel and result are: `N` the batch, `C` features, and in the
    /// kernel `I` and `O` those that go in and come out; any other letters are spatial dimensions, the
    /// same in all three: `"NHWC", "HWIO", "NHWC"`.
    #[must_use]
    pub fn layouts(mut self, operand: &str, kernel: &str, result: &str) -> Self {
        self.layouts = Some([operand, kernel, result].map(str::to_owned));
        self
    }

    /// The element type of the result, in which products are summed.
    #[must_use]
    pub fn result(mut self, dtype: DType) -> Self {
        self.result = Some(dtype);
        self
    }
}

/// The layouts that the letters name, or what is wrong with them.
fn parse(layouts: &[String; 3], rank: usize) -> Result<[ConvLayout; 3], Vec<String>> {
    let mut problems = Vec::new();
    let named = [["N", "C"], ["O", "I"], ["N", "C"]];
    for (layout, [batch, feature]) in layouts.iter().zip(named) {
        let count = layout.chars().count();
        if count != rank {
            problems.push(format!("layout {layout:?} has {count} letters, not {rank}"));
        }
        for letter in layout.chars() {
            if layout.matches(letter).count() > 1 {
                problems.push(format!("layout {layout:?} has {letter:?} twice"));
                break;
            }
        }
        for letter in [batch, feature] {
            if !layout.contains(letter) {
                problems.push(format!("layout {layout:?} has no {letter:?}"));
            }
        }
    }
    let spatial: Vec<char> = layouts[0].chars().filter(|c| !"NC".contains(*c)).collect();
    for (layout, [batch, feature]) in layouts.iter().zip(named) {
        let is_spatial = |c: &char| ![batch, feature].contains(&c.to_string().as_str());
        let mut own: Vec<char> = layout.chars().filter(is_spatial).collect();
        let mut wanted = spatial.clone();
        own.sort_unstable();
        wanted.sort_unstable();
        if own != wanted && problems.is_empty() {
            problems.push(format!(
                "the spatial dimensions of layout {layout:?} are not those of {:?}",
                layouts[0]
            ));
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let at = |layout: &str, letter: char| layout.chars().position(|c| c == letter).unwrap_or(0);
    let made = |layout: &str, [batch, feature]: [char; 2]| ConvLayout {
        batch: at(layout, batch),
        feature: at(layout, feature),
        spatial: spatial.iter().map(|&c| at(layout, c)).collect(),
    };
    Ok([
        made(&layouts[0], ['N', 'C']),
        made(&layouts[1], ['O', 'I']),
        made(&layouts[2], ['N', 'C']),
    ])
}

/// A convolution but for its padding, with the sizes that decide it.
struct Plan {
    conv: Conv,
    sizes: Dims,
    /// The elements that the kernel reaches over.
    reach: Dims,
    operand: DType,
}

impl Plan {
    fn new(
        op: &'static str,
        lhs: &TensorType,
        rhs: &TensorType,
        options: &ConvOptions,
        source: Source,
    ) -> Self {
        let fail =
            |problem: String| -> ! { fail_at(ErrorKind::Argument { op, problem }, None, source) };
        let rank = lhs.rank();
        if rank < 2 || rhs.rank() != rank {
            fail(format!(
                "{lhs} with kernel {rhs}: both want batch and feature dimensions, and as many \
                 spatial ones"
            ))
        }
        let count = rank - 2;
        let layouts = match &options.layouts {
            Some(layouts) => match parse(layouts, rank) {
                Ok(layouts) => layouts,
                Err(problems) => fail(problems.join("; ")),
            },
            None => std::array::from_fn(|_| ConvLayout {
                batch: 0,
                feature: 1,
                spatial: (2..rank).collect(),
            }),
        };
        let mut problems = Vec::new();
        let mut numbers = |what: &str, given: &Option<Dims>| match given {
            Some(given) if given.len() != count || given.contains(&0) => {
                problems.push(format!(
                    "{what} {given:?}: there are {count} spatial dimensions, and none of them is 0"
                ));
                Dims::from_elem(1, count)
            }
            Some(given) => given.clone(),
            None => Dims::from_elem(1, count),
        };
        let strides = numbers("strides", &options.strides);
        let lhs_dilation = numbers("lhs_dilation", &options.lhs_dilation);
        let rhs_dilation = numbers("rhs_dilation", &options.rhs_dilation);
        if !problems.is_empty() {
            fail(problems.join("; "))
        }
        let spanned = |size: usize, gap: usize| size.saturating_sub(1) * gap + size.min(1);
        let [left, right, out] = layouts;
        let sizes = (0..count).map(|i| spanned(lhs.shape[left.spatial[i]], lhs_dilation[i]));
        let reach = (0..count).map(|i| spanned(rhs.shape[right.spatial[i]], rhs_dilation[i]));
        let (sizes, reach) = (sizes.collect(), reach.collect());
        let Some(operand) = promote(lhs.dtype, rhs.dtype) else {
            let problem = format!("no element type holds both {lhs} and {rhs}");
            let help = "convert one of them with `.cast(...)`".to_owned();
            fail_at(ErrorKind::DType { op, problem }, Some(help), source)
        };
        let conv = Conv {
            lhs: left,
            rhs: right,
            out,
            strides,
            padding: SmallVec::new(),
            lhs_dilation,
            rhs_dilation,
            feature_groups: options.feature_groups.unwrap_or(1),
            batch_groups: options.batch_groups.unwrap_or(1),
            result: options.result.unwrap_or(operand),
        };
        Plan {
            conv,
            sizes,
            reach,
            operand,
        }
    }

    fn emit(self, lhs: Tensor, rhs: Tensor, padding: SmallVec<[(i64, i64); 2]>) -> Tensor {
        let conv = Conv {
            padding,
            ..self.conv
        };
        let fit = |x: Tensor| lax::convert(x, self.operand);
        lax::conv(fit(lhs), fit(rhs), conv)
    }
}

impl Tensor {
    /// The convolution with a kernel, without turning it around: element `i` of the result is the sum
    /// of `kernel[k] * self[i * stride + k]`, over the features that go in too.
    #[track_caller]
    pub fn conv(self, kernel: Tensor, options: &ConvOptions) -> Tensor {
        let source = Location::caller();
        method("conv", source, || {
            let plan = Plan::new("conv", &self.ty(), &kernel.ty(), options, source);
            let padding = options.padding.resolve(
                "conv",
                &plan.sizes,
                &plan.reach,
                &plan.conv.strides,
                source,
            );
            plan.emit(self, kernel, padding)
        })
    }

    /// A convolution that makes its operand larger: the elements are set `strides` apart, then
    /// convolved. ("Fractionally strided"; Dumoulin, Visin: "A guide to convolution arithmetic for
    /// deep learning", 2016.) The kernel is not turned around, and its features are those of
    /// [`Tensor::conv`]: `O` come out.
    ///
    /// With [`Padding::Same`] the result has `strides` times as many elements; with
    /// [`Padding::Valid`] it has every position that the kernel touches. Explicit padding is that of
    /// the elements that were set apart.
    #[track_caller]
    pub fn conv_transpose(self, kernel: Tensor, options: &ConvOptions) -> Tensor {
        let (op, source) = ("conv_transpose", Location::caller());
        method(op, source, || {
            if options.lhs_dilation.is_some() {
                let problem = "the strides are the distances of the operand's elements".to_owned();
                let help = "leave `lhs_dilation` out".to_owned();
                fail_at(ErrorKind::Argument { op, problem }, Some(help), source)
            }
            let count = self.rank().saturating_sub(2);
            let strides = options.strides.clone();
            let strides = strides.unwrap_or_else(|| Dims::from_elem(1, count));
            let direct = ConvOptions {
                lhs_dilation: Some(strides.clone()),
                strides: None,
                ..options.clone()
            };
            let plan = Plan::new(op, &self.ty(), &kernel.ty(), &direct, source);
            let around = |i: usize| -> (i64, i64) {
                let (reach, stride) = (plan.reach[i] as i64, strides[i] as i64);
                let all = reach + stride - 2;
                let (total, before) = match options.padding {
                    Padding::Valid => (all + (reach - stride).max(0), reach - 1),
                    Padding::SameLower if stride < reach => (all, all / 2),
                    _ if stride >= reach => (all, reach - 1),
                    _ => (all, (all + 1) / 2),
                };
                (before, total - before)
            };
            let padding = match &options.padding {
                Padding::Explicit(_) => {
                    options
                        .padding
                        .resolve(op, &plan.sizes, &plan.reach, &strides, source)
                }
                _ => (0..plan.sizes.len()).map(around).collect(),
            };
            plan.emit(self, kernel, padding)
        })
    }
}
