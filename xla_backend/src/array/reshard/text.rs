//! The two programs that move an array, in StableHLO.
//!
//! One is the identity with a sharding on its argument and another on its result, for XLA to find the
//! collectives. The other says itself which piece goes where: it runs as one replica a device, so that
//! no partitioner has a say, and works for any two arrangements, on any numbers of devices.
//!
//! Both move floats as integers of the same bits. A compiler may compute with a type that the machine
//! does not have in a wider one, and what is a NaN would come out as another.

use std::fmt::Write;

use shardax_core::{DType, TensorType};
use shardax_sharding::{Blocks, Exchange, Piece};

use crate::lower::tensor_type;

/// The identity, partitioned by GSPMD, whose shardings can list devices in any order.
pub(super) fn identity(ty: &TensorType, from: &Blocks, to: &Blocks) -> String {
    let (text, carried) = (tensor_type(ty), tensor_type(&carried(ty)));
    let (before, after) = (tiles(from), tiles(to));
    // A bitcast to the same type is none.
    let cast = |operand: &str, from: &str, to: &str, tiles: &str| {
        format!(
            "stablehlo.bitcast_convert {operand} {{mhlo.sharding = \"{tiles}\"}} : ({from}) -> {to}"
        )
    };
    format!(
        "module @reshard attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\n\
         \x20 func.func public @main(%0: {text} {{mhlo.sharding = \"{before}\"}}) -> ({text} {{mhlo.sharding = \"{after}\"}}) {{\n\
         \x20   %1 = {}\n\
         \x20   %2 = stablehlo.custom_call @Sharding(%1) {{mhlo.sharding = \"{after}\"}} : ({carried}) -> {carried}\n\
         \x20   %3 = {}\n\
         \x20   return %3 : {text}\n\
         \x20 }}\n\
         }}\n",
        from.of_devices().len(),
        cast("%0", &text, &carried, &before),
        cast("%2", &carried, &text, &after),
    )
}

/// The type that an array's elements are moved as: integers with the bits of the floats.
fn carried(ty: &TensorType) -> TensorType {
    let dtype = match ty.dtype {
        DType::F8E4M3FN | DType::F8E5M2 => DType::U8,
        DType::F16 | DType::BF16 => DType::U16,
        DType::F32 => DType::U32,
        DType::F64 => DType::U64,
        dtype => dtype,
    };
    TensorType::new(dtype, &ty.shape)
}

/// `{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}`: the devices that hold each block.
fn tiles(blocks: &Blocks) -> String {
    if blocks.count() == 1 {
        return "{replicated}".to_owned();
    }
    let copies = blocks.of_devices().len() / blocks.count();
    let mut sizes = blocks.grid().to_vec();
    let mut kind = "";
    if copies > 1 {
        sizes.push(copies);
        kind = " last_tile_dim_replicate";
    }
    let devices: Vec<usize> = (0..blocks.count())
        .flat_map(|b| blocks.holders(b))
        .collect();
    format!("{{devices=[{}]{}{kind}}}", list(&sizes), list(&devices))
}

fn list(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(",")
}

/// A replica for each of `devices` devices: it has its block of `from`, and gives its block of `to`.
/// A device beyond either arrangement takes or gives a block that nobody looks at.
pub(super) fn exchange(
    dtype: DType,
    (from, to): (&Blocks, &Blocks),
    exchange: &Exchange,
    devices: usize,
) -> String {
    let given = TensorType::new(dtype, from.block_shape());
    let wanted = TensorType::new(dtype, to.block_shape());
    let (source, target) = (carried(&given), carried(&wanted));
    let mut writer = Writer {
        devices,
        piece: carried(&TensorType::new(dtype, exchange.piece_shape())),
        body: String::new(),
        values: 1,
    };
    let block = writer.cast("%0", &given, &source);
    let me = writer.value("stablehlo.replica_id : tensor<ui32>");
    let mut result = writer.zeros(&target);
    let kept = kept_in_turn(exchange.kept(), devices);
    let rounds = kept.iter().map(|pieces| (pieces, false));
    let moved = exchange.rounds();
    for (pieces, moves) in rounds.chain(moved.iter().map(|pieces| (pieces, true))) {
        let starts = writer.starts(&me, pieces, |p| (p.source, &p.source_start));
        let mut piece = writer.slice(&block, &source, &starts);
        if moves {
            piece = writer.permute(&piece, pieces);
        }
        let starts = writer.starts(&me, pieces, |p| (p.target, &p.target_start));
        let old = writer.slice(&result, &target, &starts);
        let piece = writer.where_received(&me, pieces, &piece, &old);
        result = writer.update(&result, &target, &piece, &starts);
    }
    let result = writer.cast(&result, &target, &wanted);
    let (source, target) = (tensor_type(&given), tensor_type(&wanted));
    format!(
        "module @reshard attributes {{mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {devices} : i32}} {{\n\
         \x20 func.func public @main(%0: {source}) -> {target} {{\n\
         {}\
         \x20   return {result} : {target}\n\
         \x20 }}\n\
         }}\n",
        writer.body
    )
}

/// The first piece that each device keeps, the second of each, and so on.
fn kept_in_turn(kept: &[Piece], devices: usize) -> Vec<Vec<&Piece>> {
    let mut seen = vec![0; devices];
    let mut turns: Vec<Vec<&Piece>> = Vec::new();
    for piece in kept {
        let turn = seen[piece.target];
        seen[piece.target] += 1;
        if turns.len() <= turn {
            turns.push(Vec::new());
        }
        turns[turn].push(piece);
    }
    turns
}

/// Writes operations on blocks and pieces.
struct Writer {
    devices: usize,
    piece: TensorType,
    body: String,
    values: usize,
}

impl Writer {
    /// The value of an operation.
    fn value(&mut self, operation: &str) -> String {
        let name = format!("%{}", self.values);
        self.values += 1;
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "    {name} = {operation}");
        name
    }

    /// The same bits as another type of the same width.
    fn cast(&mut self, operand: &str, from: &TensorType, to: &TensorType) -> String {
        if from == to {
            return operand.to_owned();
        }
        let (from, to) = (tensor_type(from), tensor_type(to));
        self.value(&format!(
            "stablehlo.bitcast_convert {operand} : ({from}) -> {to}"
        ))
    }

    fn zeros(&mut self, ty: &TensorType) -> String {
        let zero = match ty.dtype {
            DType::Bool => "false",
            DType::C64 => "(0.0, 0.0)",
            _ => "0",
        };
        self.value(&format!(
            "stablehlo.constant dense<{zero}> : {}",
            tensor_type(ty)
        ))
    }

    /// This device's entry of a table with one for each.
    fn of_device(&mut self, me: &str, table: &[String], element: &str) -> String {
        if table.windows(2).all(|pair| pair[0] == pair[1]) {
            let entry = table.first().map_or("0", String::as_str);
            return self.value(&format!(
                "stablehlo.constant dense<{entry}> : tensor<{element}>"
            ));
        }
        let (all, devices) = (table.join(", "), self.devices);
        let table = self.value(&format!(
            "stablehlo.constant dense<[{all}]> : tensor<{devices}x{element}>"
        ));
        let entry = self.value(&format!(
            "stablehlo.dynamic_slice {table}, {me}, sizes = [1] : (tensor<{devices}x{element}>, tensor<ui32>) -> tensor<1x{element}>"
        ));
        self.value(&format!(
            "stablehlo.reshape {entry} : (tensor<1x{element}>) -> tensor<{element}>"
        ))
    }

    /// Where this device's piece of a round begins in its block; anywhere if it has none.
    fn starts<'a>(
        &mut self,
        me: &str,
        pieces: &[&'a Piece],
        of: impl Fn(&'a Piece) -> (usize, &'a Vec<usize>),
    ) -> Vec<String> {
        let rank = self.piece.rank();
        let mut tables = vec![vec!["0".to_owned(); self.devices]; rank];
        for piece in pieces {
            let (device, start) = of(piece);
            for (table, at) in tables.iter_mut().zip(start) {
                table[device] = at.to_string();
            }
        }
        let tables = tables.iter();
        tables
            .map(|table| self.of_device(me, table, "i64"))
            .collect()
    }

    /// The piece of a block that begins there.
    fn slice(&mut self, block: &str, ty: &TensorType, starts: &[String]) -> String {
        if self.piece.shape == ty.shape {
            return block.to_owned();
        }
        let sizes = list(&self.piece.shape);
        self.value(&format!(
            "stablehlo.dynamic_slice {block}, {}, sizes = [{sizes}] : ({}{}) -> {}",
            starts.join(", "),
            tensor_type(ty),
            ", tensor<i64>".repeat(starts.len()),
            tensor_type(&self.piece),
        ))
    }

    /// A block with another piece there.
    fn update(&mut self, block: &str, ty: &TensorType, piece: &str, starts: &[String]) -> String {
        if self.piece.shape == ty.shape {
            return piece.to_owned();
        }
        let text = tensor_type(ty);
        self.value(&format!(
            "stablehlo.dynamic_update_slice {block}, {piece}, {} : ({text}, {}{}) -> {text}",
            starts.join(", "),
            tensor_type(&self.piece),
            ", tensor<i64>".repeat(starts.len()),
        ))
    }

    /// The piece that a device sends to this one.
    fn permute(&mut self, piece: &str, pieces: &[&Piece]) -> String {
        let pairs: Vec<String> = pieces
            .iter()
            .map(|piece| format!("[{}, {}]", piece.source, piece.target))
            .collect();
        let text = tensor_type(&self.piece);
        self.value(&format!(
            "\"stablehlo.collective_permute\"({piece}) {{source_target_pairs = dense<[{}]> : tensor<{}x2xi64>}} : ({text}) -> {text}",
            pairs.join(", "),
            pairs.len(),
        ))
    }

    /// `new` on the devices that have a piece in a round, `old` on the others.
    fn where_received(&mut self, me: &str, pieces: &[&Piece], new: &str, old: &str) -> String {
        let mut receives = vec!["false".to_owned(); self.devices];
        for piece in pieces {
            receives[piece.target] = "true".to_owned();
        }
        if receives.iter().all(|receives| receives == "true") {
            return new.to_owned();
        }
        let receives = self.of_device(me, &receives, "i1");
        let text = tensor_type(&self.piece);
        self.value(&format!(
            "stablehlo.select {receives}, {new}, {old} : (tensor<i1>, {text}, {text}) -> {text}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use shardax_sharding::PartitionSpec;

    use super::*;

    #[test]
    fn tiles_list_the_holders_of_each_block() -> Result<(), shardax_sharding::Error> {
        let mesh = "x=2,y=2".parse()?;
        let text = |spec: PartitionSpec| Blocks::new(&spec, &mesh, &[4, 4]).map(|b| tiles(&b));
        assert_eq!(
            text(PartitionSpec::replicated(2)),
            Ok("{replicated}".into())
        );
        assert_eq!(
            text(PartitionSpec::new(("y", ()))),
            Ok("{devices=[2,1,2]0,2,1,3 last_tile_dim_replicate}".into())
        );
        assert_eq!(
            text(PartitionSpec::new(("y", "x"))),
            Ok("{devices=[2,2]0,2,1,3}".into())
        );
        Ok(())
    }
}
