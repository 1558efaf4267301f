//! Windows of arrays in host memory: cutting a block out, and pasting it in.

use std::ops::Range;

use shardax_core::TensorType;

/// Rows of a window: (offset in the array, offset in the window), in bytes, and their length.
fn rows(ty: &TensorType, bounds: &[Range<usize>]) -> (Vec<(usize, usize)>, usize) {
    let width = ty.dtype.host_bytes();
    let Some((last, outer)) = bounds.split_last() else {
        return (vec![(0, 0)], width);
    };
    let length = last.len() * width;
    let mut offsets = vec![last.start];
    let mut stride = *ty.shape.last().unwrap_or(&1);
    // Inner dimensions vary fastest, so each outer one repeats what is there.
    for (bound, size) in outer.iter().zip(&ty.shape).rev() {
        offsets = bound
            .clone()
            .flat_map(|i| {
                offsets
                    .iter()
                    .map(move |offset| offset + i * stride)
                    .collect::<Vec<_>>()
            })
            .collect();
        stride *= size;
    }
    let rows = offsets.iter().enumerate();
    (
        rows.map(|(row, offset)| (offset * width, row * length))
            .collect(),
        length,
    )
}

/// The bytes of a window of an array.
pub(super) fn cut(bytes: &[u8], ty: &TensorType, bounds: &[Range<usize>]) -> Vec<u8> {
    let (rows, length) = rows(ty, bounds);
    let mut part = vec![0; rows.len() * length];
    for (from, to) in rows {
        part[to..to + length].copy_from_slice(&bytes[from..from + length]);
    }
    part
}

/// Writes the bytes of a window into an array.
pub(super) fn paste(bytes: &mut [u8], ty: &TensorType, bounds: &[Range<usize>], part: &[u8]) {
    let (rows, length) = rows(ty, bounds);
    for (to, from) in rows {
        bytes[to..to + length].copy_from_slice(&part[from..from + length]);
    }
}

#[cfg(test)]
mod tests {
    use shardax_core::DType;

    use super::*;

    #[test]
    fn cutting_and_pasting_are_inverse() {
        let ty = TensorType::new(DType::U8, [4, 3, 2]);
        let bytes: Vec<u8> = (0..24).collect();
        let windows = [
            [0..2, 0..3, 0..1],
            [2..4, 0..3, 0..1],
            [0..2, 0..3, 1..2],
            [2..4, 0..3, 1..2],
        ];
        let mut pasted = vec![0; 24];
        for window in &windows {
            paste(&mut pasted, &ty, window, &cut(&bytes, &ty, window));
        }
        assert_eq!(pasted, bytes);
        assert_eq!(cut(&bytes, &ty, &[1..2, 1..3, 0..2]), [8, 9, 10, 11]);
        assert_eq!(cut(&[7], &TensorType::scalar(DType::U8), &[]), [7]);
    }
}
