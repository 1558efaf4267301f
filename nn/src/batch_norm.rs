//! Batch normalization, whose running statistics are an argument and a result.

use shardax_core::{DType, Tensor, nn};
use shardax_macros::Module;

/// Normalizes each channel by the batch's mean and variance, then scales it by a gain and adds an offset.
/// (Ioffe, Szegedy: "Batch normalization", 2015.)
///
/// Nothing changes in place, so the statistics that inference uses are a tree of their own, beside the parameters and
/// out of the optimizer's reach: training takes them and returns the new ones, as in Flax. Give them out of the loss
/// by `value_and_grad` of a function that returns them too, and into the next step. The mean is over the whole batch,
/// however many devices split it.
///
/// ```
/// use shardax_core::{DType, Tensor, TensorType, trace};
/// use shardax_nn::{BatchNorm, RunningStatistics};
///
/// fn train(norm: BatchNorm, x: Tensor, running: RunningStatistics) -> (Tensor, RunningStatistics) {
///     norm.forward(x, running)
/// }
///
/// fn predict(norm: BatchNorm, x: Tensor, running: RunningStatistics) -> Tensor {
///     norm.forward_inference(x, running)
/// }
///
/// let step = |x: Tensor| train(BatchNorm::init(&[3]), x, RunningStatistics::init(&[3]));
/// let x = TensorType::new(DType::F32, [8, 3, 32, 32]);
/// assert_eq!(trace(step, x.clone())?.output_types()[0], x);
/// # Ok::<(), shardax_core::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct BatchNorm<L = Tensor> {
    /// One factor a channel, shape `[channels]`.
    #[shard(channels)]
    pub gain: L,
    /// One summand a channel, shape `[channels]`.
    #[shard(channels)]
    pub offset: L,
    /// The dimension of the channels: at first 1, as [`Conv`](crate::Conv) has it.
    pub channel_axis: isize,
    /// How much of the running statistics stays in each step; at first 0.9.
    pub momentum: f64,
    /// Added to the variance; at first 1e-5.
    pub eps: f64,
}

/// What [`BatchNorm`] has seen: running means of each channel's mean and variance.
#[derive(Clone, Debug, Module)]
pub struct RunningStatistics<L = Tensor> {
    /// Shape `[channels]`.
    #[shard(channels)]
    pub mean: L,
    /// Shape `[channels]`; divided by the number of elements.
    #[shard(channels)]
    pub variance: L,
}

impl RunningStatistics {
    /// Means of 0 and variances of 1 in f32; `shape` as in [`BatchNorm::init`].
    #[track_caller]
    pub fn init(shape: &[usize]) -> Self {
        RunningStatistics {
            mean: Tensor::zeros(DType::F32, shape),
            variance: Tensor::ones(DType::F32, shape),
        }
    }
}

impl BatchNorm {
    /// Gains of 1 and offsets of 0 in f32; `shape` is `[channels]`, with the number of layers before it in a stack.
    #[track_caller]
    pub fn init(shape: &[usize]) -> Self {
        BatchNorm {
            gain: Tensor::ones(DType::F32, shape),
            offset: Tensor::zeros(DType::F32, shape),
            channel_axis: 1,
            momentum: 0.9,
            eps: 1e-5,
        }
    }

    /// [`nn::batch_norm`] for training, and the running statistics with those of this batch among them.
    #[track_caller]
    pub fn forward(&self, x: Tensor, running: RunningStatistics) -> (Tensor, RunningStatistics) {
        let (gain, offset) = (Some(self.gain), Some(self.offset));
        let (y, batch) = nn::batch_norm(x, gain, offset, self.channel_axis, self.eps);
        let running = (running.mean, running.variance);
        let (mean, variance) = nn::running_statistics(running, batch, self.momentum);
        (y, RunningStatistics { mean, variance })
    }

    /// [`nn::batch_norm_inference`], by the running statistics alone.
    #[track_caller]
    pub fn forward_inference(&self, x: Tensor, running: RunningStatistics) -> Tensor {
        let running = (running.mean, running.variance);
        let (gain, offset) = (Some(self.gain), Some(self.offset));
        nn::batch_norm_inference(x, running, gain, offset, self.channel_axis, self.eps)
    }
}
