//! Literals in MLIR's `dense<...>` form.

use std::fmt::Write;

use shardax_core::{DType, Literal, Number};

/// `dense<0x3F800000>`, `dense<[1, 2]>`, `dense<"0x...">`.
///
/// Floats are written as the hexadecimal of their bits, which loses nothing.
pub(super) fn dense(literal: &Literal) -> String {
    let dtype = literal.ty().dtype;
    let width = match dtype {
        DType::C64 => 4,
        _ => dtype.host_bytes(),
    };
    if literal.ty().element_count() == 0 {
        return "dense<>".to_owned();
    }
    if literal.is_splat() || literal.bytes().len() == dtype.host_bytes() {
        return format!("dense<{}>", element(dtype, literal, width));
    }
    if dtype == DType::Bool || dtype.is_integer() {
        return format!("dense<{}>", nested(&literal.ty().shape, &integers(literal)));
    }
    let mut blob = String::from("dense<\"0x");
    for byte in literal.bytes() {
        // Writing to a string does not fail.
        let _ = write!(blob, "{byte:02X}");
    }
    blob.push_str("\">");
    blob
}

fn element(dtype: DType, literal: &Literal, width: usize) -> String {
    match dtype {
        DType::C64 => {
            let (real, imaginary) = literal.bytes().split_at(width);
            format!("({}, {})", bits(real), bits(imaginary))
        }
        _ if dtype.is_float() => bits(literal.bytes()),
        _ => integers(literal).concat(),
    }
}

/// The bits of a float of the host's byte order, most significant digit first.
fn bits(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes.iter().rev() {
        let _ = write!(text, "{byte:02X}");
    }
    text
}

fn integers(literal: &Literal) -> Vec<String> {
    let unsigned = literal.ty().dtype == DType::U64;
    let numbers = literal.numbers().into_iter();
    numbers
        .map(|number| match number {
            Number::Int(value) if unsigned => (value as u64).to_string(),
            number => number.to_string(),
        })
        .collect()
}

fn nested(shape: &[usize], elements: &[String]) -> String {
    let Some((&size, inner)) = shape.split_first() else {
        return elements.concat();
    };
    let each = inner.iter().product::<usize>().max(1);
    let rows: Vec<String> = elements
        .chunks(each)
        .take(size)
        .map(|chunk| nested(inner, chunk))
        .collect();
    format!("[{}]", rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_keep_every_bit() {
        let one = Literal::scalar(1.0.into(), DType::F32).map(|l| dense(&l));
        assert_eq!(one.as_deref(), Some("dense<0x3F800000>"));
        let nan = Literal::scalar(f64::NAN.into(), DType::BF16).map(|l| dense(&l));
        assert_eq!(nan.as_deref(), Some("dense<0x7FC0>"));
        let minus = Literal::scalar((-3).into(), DType::I32).map(|l| dense(&l));
        assert_eq!(minus.as_deref(), Some("dense<-3>"));
        let grid = Literal::from_slice(&[1i32, 2, 3, 4], [2, 2]).map(|l| dense(&l));
        assert_eq!(grid.as_deref(), Some("dense<[[1, 2], [3, 4]]>"));
        let large = Literal::from_slice(&[u64::MAX, 1], [2]).map(|l| dense(&l));
        assert_eq!(large.as_deref(), Some("dense<[18446744073709551615, 1]>"));
        let flags = Literal::from_slice(&[true, false], [2]).map(|l| dense(&l));
        assert_eq!(flags.as_deref(), Some("dense<[true, false]>"));
        let floats = Literal::from_slice(&[1f32, -2.0], [2]).map(|l| dense(&l));
        assert_eq!(floats.as_deref(), Some("dense<\"0x0000803F000000C0\">"));
    }
}
