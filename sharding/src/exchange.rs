//! What has to move so that an array lies in another way: the least, and a plan that sends no more.
//!
//! Both arrangements cut the array into a grid of blocks. The common refinement of the two grids has
//! *pieces* that each lie within one block of either. A device that is to hold a piece has it already,
//! or gets it from one that has; nothing else needs to be sent, whatever the two meshes look like.

use crate::blocks::{Blocks, number, place};

/// The pieces of an array that stay on their device or move to another when it comes to lie as `to`
/// instead of `from`. The two may be on different numbers of devices; a position is the same device in
/// both.
///
/// ```
/// use shardax_sharding::{Blocks, Exchange, Mesh, PartitionSpec};
///
/// let mesh = Mesh::new([("data", 4)])?;
/// let blocks = |spec: PartitionSpec| Blocks::new(&spec, &mesh, &[8, 8]).unwrap();
/// let received = |from, to| Exchange::new(from, to).map(|exchange| exchange.most_received());
/// let rows = blocks(PartitionSpec::new(("data", ())));
/// let columns = blocks(PartitionSpec::new(((), "data")));
/// // Of its 16 new elements each device has 4.
/// assert_eq!(received(&rows, &columns), Some(12));
/// // Everybody has everything, and forgets most of it.
/// let whole = blocks(PartitionSpec::replicated(2));
/// assert_eq!(received(&whole, &rows), Some(0));
/// # Ok::<(), shardax_sharding::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    piece_shape: Vec<usize>,
    kept: Vec<Piece>,
    moved: Vec<Piece>,
}

/// A piece of an array that goes from a device to a device, or stays on one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The position of the device that has it.
    pub source: usize,
    /// The position of the device that is to have it.
    pub target: usize,
    /// Where it begins in the source's block.
    pub source_start: Vec<usize>,
    /// Where it begins in the target's block.
    pub target_start: Vec<usize>,
}

impl Exchange {
    /// What moves from one arrangement of an array to another of the same shape.
    ///
    /// Where several devices have a piece, the one sends it that has to send least so far, and of
    /// those the nearest.
    ///
    /// `None` if the two are of different shapes.
    pub fn new(from: &Blocks, to: &Blocks) -> Option<Self> {
        if from.shape() != to.shape() {
            return None;
        }
        let grids = || from.grid().iter().zip(to.grid());
        let grid: Vec<usize> = grids()
            .map(|(&a, &b)| least_common_multiple(a, b))
            .collect();
        let sizes = from.shape().iter().zip(&grid);
        // A dimension that both divide, their least common multiple does; so does size 0.
        let piece_shape: Vec<usize> = sizes.map(|(size, parts)| size / parts).collect();
        let mut exchange = Exchange {
            piece_shape,
            kept: Vec::new(),
            moved: Vec::new(),
        };
        if from.shape().contains(&0) {
            return Some(exchange);
        }
        let mut sent = vec![0usize; from.of_devices().len()];
        let holders: Vec<Vec<usize>> = (0..from.count())
            .map(|block| from.holders(block).collect())
            .collect();
        for (target, &block) in to.of_devices().iter().enumerate() {
            for piece in pieces_of(&grid, to, block) {
                let source_place = scaled_down(&piece, &grid, from.grid());
                let holders = &holders[number(from.grid(), &source_place)];
                let source = match holders.binary_search(&target) {
                    Ok(_) => target,
                    Err(_) => {
                        let cost = |holder: &&usize| (sent[**holder], holder.abs_diff(target));
                        holders.iter().min_by_key(cost).copied().unwrap_or(target)
                    }
                };
                let moved = Piece {
                    source,
                    target,
                    source_start: exchange.start(&piece, &grid, from.grid()),
                    target_start: exchange.start(&piece, &grid, to.grid()),
                };
                if source == target {
                    exchange.kept.push(moved);
                } else {
                    sent[source] += 1;
                    exchange.moved.push(moved);
                }
            }
        }
        Some(exchange)
    }

    /// Where a piece begins within its block of a coarser grid.
    fn start(&self, piece: &[usize], fine: &[usize], coarse: &[usize]) -> Vec<usize> {
        let parts = fine.iter().zip(coarse).map(|(fine, coarse)| fine / coarse);
        let along = piece.iter().zip(parts).zip(&self.piece_shape);
        along.map(|((at, parts), size)| at % parts * size).collect()
    }

    /// Dimension sizes of every piece.
    pub fn piece_shape(&self) -> &[usize] {
        &self.piece_shape
    }

    /// Elements of a piece.
    fn piece_elements(&self) -> usize {
        self.piece_shape.iter().product()
    }

    /// The pieces that are on their device already.
    pub fn kept(&self) -> &[Piece] {
        &self.kept
    }

    /// The pieces that move to another device.
    pub fn moved(&self) -> &[Piece] {
        &self.moved
    }

    /// Elements that all devices together receive. No way to move the array receives fewer: they are
    /// what each device lacks.
    pub fn received(&self) -> usize {
        self.moved.len() * self.piece_elements()
    }

    /// Elements that the device receives that receives most.
    pub fn most_received(&self) -> usize {
        let devices = self.moved.iter().map(|piece| piece.target + 1).max();
        let mut received = vec![0; devices.unwrap_or(0)];
        for piece in &self.moved {
            received[piece.target] += self.piece_elements();
        }
        received.into_iter().max().unwrap_or(0)
    }

    /// The pieces that move, in rounds: in one round a device sends one piece at most and receives one
    /// at most. There are as few rounds as that allows: as many as the busiest device has pieces to
    /// send, or to receive.
    pub fn rounds(&self) -> Vec<Vec<&Piece>> {
        let devices = self.moved.iter().map(|p| p.source.max(p.target) + 1).max();
        let mut rounds = Rounds::new(&self.moved, devices.unwrap_or(0));
        for piece in 0..self.moved.len() {
            rounds.place(piece);
        }
        rounds.list()
    }
}

/// A colouring of the edges of a bipartite graph: senders on one side, receivers on the other, pieces
/// as edges, rounds as colours. As many colours as the largest degree are enough (Koenig, 1916).
struct Rounds<'a> {
    pieces: &'a [Piece],
    /// The piece that each device sends in each round.
    sends: Vec<Vec<Option<usize>>>,
    /// The piece that each device receives in each round.
    receives: Vec<Vec<Option<usize>>>,
}

impl<'a> Rounds<'a> {
    fn new(pieces: &'a [Piece], devices: usize) -> Self {
        let (mut sent, mut received) = (vec![0; devices], vec![0; devices]);
        for piece in pieces {
            sent[piece.source] += 1;
            received[piece.target] += 1;
        }
        let rounds = sent.into_iter().chain(received).max().unwrap_or(0);
        Rounds {
            pieces,
            sends: vec![vec![None; rounds]; devices],
            receives: vec![vec![None; rounds]; devices],
        }
    }

    /// Finds a round for a piece.
    fn place(&mut self, piece: usize) {
        let Piece { source, target, .. } = self.pieces[piece];
        let is_free = |device: &[Option<usize>], round: &usize| device[*round].is_none();
        let rounds = 0..self.sends[source].len();
        let sends = rounds.clone().find(|r| is_free(&self.sends[source], r));
        let receives = rounds.clone().find(|r| is_free(&self.receives[target], r));
        let both = rounds
            .clone()
            .find(|r| is_free(&self.sends[source], r) && is_free(&self.receives[target], r));
        // Neither device has more pieces than there are rounds, so each has one that is free.
        let round = match (both, sends, receives) {
            (Some(round), _, _) => round,
            (None, Some(sends), Some(receives)) => {
                self.swap_from(target, sends, receives);
                sends
            }
            _ => return,
        };
        self.sends[source][round] = Some(piece);
        self.receives[target][round] = Some(piece);
    }

    /// Swaps two rounds along the path of pieces of these rounds that begins at a receiver, so that it
    /// receives nothing in round `busy`, having had nothing in round `free`.
    fn swap_from(&mut self, target: usize, busy: usize, free: usize) {
        let mut path = Vec::new();
        let (mut device, mut round, mut receiving) = (target, busy, true);
        loop {
            let side = if receiving {
                &self.receives
            } else {
                &self.sends
            };
            let Some(piece) = side[device][round] else {
                break;
            };
            path.push((piece, round));
            let Piece { source, target, .. } = self.pieces[piece];
            device = if receiving { source } else { target };
            receiving = !receiving;
            round = busy + free - round;
        }
        for &(piece, round) in &path {
            self.sends[self.pieces[piece].source][round] = None;
            self.receives[self.pieces[piece].target][round] = None;
        }
        for (piece, round) in path {
            let other = busy + free - round;
            self.sends[self.pieces[piece].source][other] = Some(piece);
            self.receives[self.pieces[piece].target][other] = Some(piece);
        }
    }

    /// The pieces of each round.
    fn list(&self) -> Vec<Vec<&'a Piece>> {
        let rounds = self.sends.first().map_or(0, Vec::len);
        let of_round = |round: usize| {
            let sent = self.sends.iter().filter_map(move |device| device[round]);
            sent.map(|piece| &self.pieces[piece]).collect()
        };
        (0..rounds).map(of_round).collect()
    }
}

/// The places in the fine grid that a block covers.
fn pieces_of(fine: &[usize], blocks: &Blocks, block: usize) -> impl Iterator<Item = Vec<usize>> {
    let first = blocks.place(block);
    let within: Vec<usize> = fine.iter().zip(blocks.grid()).map(|(f, c)| f / c).collect();
    let count: usize = within.iter().product();
    (0..count).map(move |index| {
        let offset = place(&within, index);
        let along = first.iter().zip(&within).zip(offset);
        along
            .map(|((at, parts), offset)| at * parts + offset)
            .collect()
    })
}

/// The block of a coarser grid that a piece lies in.
fn scaled_down(piece: &[usize], fine: &[usize], coarse: &[usize]) -> Vec<usize> {
    let along = piece.iter().zip(fine).zip(coarse);
    along
        .map(|((at, fine), coarse)| at / (fine / coarse))
        .collect()
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::Mesh;
    use crate::spec::PartitionSpec;

    fn blocks(mesh: &str, spec: PartitionSpec, shape: &[usize]) -> Blocks {
        Blocks::new(&spec, &mesh.parse().unwrap(), shape).unwrap()
    }

    fn exchange(from: &Blocks, to: &Blocks) -> Exchange {
        Exchange::new(from, to).unwrap()
    }

    /// Plays the exchange on element numbers.
    fn play(from: &Blocks, to: &Blocks) {
        let exchange = exchange(from, to);
        let strides: Vec<usize> = (0..from.shape().len())
            .map(|d| from.shape()[d + 1..].iter().product())
            .collect();
        let at = |blocks: &Blocks, device: usize, start: &[usize]| -> usize {
            let bounds = blocks.bounds(blocks.of_devices()[device]);
            let along = bounds.iter().zip(start).zip(&strides);
            along.map(|((b, s), stride)| (b.start + s) * stride).sum()
        };
        let per_block: usize = to.block_shape().iter().product();
        let piece: usize = exchange.piece_shape().iter().product();
        let mut got = vec![Vec::new(); to.of_devices().len()];
        for p in exchange.kept().iter().chain(exchange.moved()) {
            let source = at(from, p.source, &p.source_start);
            assert_eq!(source, at(to, p.target, &p.target_start));
            assert!(!got[p.target].contains(&source), "a piece comes twice");
            got[p.target].push(source);
        }
        for pieces in got {
            assert_eq!(pieces.len() * piece, per_block);
        }
        let rounds = exchange.rounds();
        let moved = exchange.moved();
        assert_eq!(rounds.iter().map(Vec::len).sum::<usize>(), moved.len());
        let degree = |of: fn(&Piece) -> usize| {
            let count = |d| moved.iter().filter(|piece| of(piece) == d).count();
            (0..16).map(count).max().unwrap()
        };
        assert_eq!(rounds.len(), degree(|p| p.source).max(degree(|p| p.target)));
        for round in rounds {
            for (i, p) in round.iter().enumerate() {
                let clash = |q: &&Piece| q.source == p.source || q.target == p.target;
                assert!(!round[..i].iter().any(clash));
            }
        }
    }

    #[test]
    fn every_device_gets_its_block_once() {
        let shape = [12, 24];
        let all = [
            blocks("x=6", PartitionSpec::new(("x", ())), &shape),
            blocks("x=6", PartitionSpec::new(((), "x")), &shape),
            blocks("x=2,y=3", PartitionSpec::new(("x", "y")), &shape),
            blocks("x=3,y=2", PartitionSpec::new(("x", "y")), &shape),
            blocks("x=3,y=2", PartitionSpec::new((("y", "x"), ())), &shape),
            blocks("x=2,y=2,z=2", PartitionSpec::new((("z", "x"), "y")), &shape),
            blocks("x=2,y=2,z=2", PartitionSpec::new(((), "y")), &shape),
            blocks("x=4", PartitionSpec::replicated(2), &shape),
            Blocks::new(&PartitionSpec::replicated(2), &Mesh::single(), &shape).unwrap(),
        ];
        for from in &all {
            for to in &all {
                play(from, to);
            }
            assert_eq!(exchange(from, from).received(), 0);
        }
    }

    #[test]
    fn only_what_is_lacking_moves() {
        let shape = [8, 8];
        let rows = blocks("x=2,y=4", PartitionSpec::new(("x", ())), &shape);
        let finer = blocks("x=2,y=4", PartitionSpec::new(("y", ())), &shape);
        let exchange = exchange(&rows, &finer);
        // Each half of the devices has two of the four quarters already.
        assert_eq!(exchange.received(), 4 * 16);
        assert_eq!(exchange.most_received(), 16);
        // Four holders of each half share the sending.
        assert_eq!(exchange.rounds().len(), 1);
    }

    #[test]
    fn a_transposition_fills_its_rounds() {
        let rows = blocks("x=8", PartitionSpec::new(("x", ())), &[16, 16]);
        let columns = blocks("x=8", PartitionSpec::new(((), "x")), &[16, 16]);
        let exchange = exchange(&rows, &columns);
        assert_eq!(exchange.piece_shape(), [2, 2]);
        let rounds: Vec<usize> = exchange.rounds().iter().map(Vec::len).collect();
        assert_eq!(rounds, [8; 7]);
    }

    /// Every way to split two dimensions by the axes of a mesh.
    fn specs(mesh: &Mesh) -> Vec<PartitionSpec> {
        let mut specs = vec![[Vec::new(), Vec::new()]];
        for axis in mesh.axes() {
            for [rows, columns] in specs.clone() {
                for at in 0..=rows.len() {
                    let mut rows = rows.clone();
                    rows.insert(at, axis.name().to_owned());
                    specs.push([rows, columns.clone()]);
                }
                for at in 0..=columns.len() {
                    let mut columns = columns.clone();
                    columns.insert(at, axis.name().to_owned());
                    specs.push([rows.clone(), columns]);
                }
            }
        }
        specs.into_iter().map(PartitionSpec::new).collect()
    }

    /// So it is between any two specs on one mesh: all send alike, in no more rounds than the bound has
    /// pieces.
    #[test]
    fn nobody_sends_more_than_the_most_that_somebody_receives() {
        for text in ["x=2,y=2,z=2", "x=2,y=3,z=2", "x=4,y=4", "x=2,y=8"] {
            let mesh: Mesh = text.parse().unwrap();
            let shape = [48, 48];
            let specs = specs(&mesh);
            let blocks = specs.iter().map(|spec| Blocks::new(spec, &mesh, &shape));
            let blocks: Vec<Blocks> = blocks.collect::<Result<_, _>>().unwrap();
            for (from, old) in blocks.iter().zip(&specs) {
                for (to, new) in blocks.iter().zip(&specs) {
                    let exchange = exchange(from, to);
                    let sent = exchange.rounds().len() * exchange.piece_elements();
                    assert_eq!(sent, exchange.most_received(), "{old} to {new} on {mesh}");
                }
            }
        }
    }

    #[test]
    fn other_numbers_of_devices() {
        let eight = blocks("x=8", PartitionSpec::new(["x"]), &[16]);
        let four = blocks("x=4", PartitionSpec::new(["x"]), &[16]);
        let shrink = exchange(&eight, &four);
        // Device 0 has the first half of its new block; the others have nothing of theirs.
        assert_eq!(shrink.received(), 2 + 3 * 4);
    }

    #[test]
    fn nothing_of_an_empty_array_moves() {
        let rows = blocks("x=2", PartitionSpec::new(("x", ())), &[0, 4]);
        let columns = blocks("x=2", PartitionSpec::new(((), "x")), &[0, 4]);
        assert_eq!(exchange(&rows, &columns).received(), 0);
        assert_eq!(
            Exchange::new(&rows, &blocks("x=2", PartitionSpec::new(["x"]), &[4])),
            None
        );
    }
}
