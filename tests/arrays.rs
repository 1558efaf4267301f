//! Arrays: how they get to devices and back, and from any sharding to any other with the least
//! communication.

use std::ops::Range;

use shardax::prelude::*;
use shardax::train::AdamW;
use shardax::xla::report::CollectiveKind;
use shardax::xla::{Error, Result};
use shardax::{PartitionSpec, Reshard, Runtime, Sharding, TypeTree};

/// All tests but those of two clients share one, of 16 devices.
fn runtime() -> Result<Runtime> {
    Runtime::shared(16)
}

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn on(text: &str, spec: impl Into<PartitionSpec>) -> Sharding {
    Sharding::new(mesh(text), spec.into())
}

fn counting(shape: &[usize]) -> Array {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
    Array::from_slice(&values, shape).unwrap()
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it went well"),
        Err(error) => error.to_string(),
    }
}

/// A generator of test cases, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A spec that may fit an array of this rank, and may not.
    fn spec(&mut self, mesh: &Mesh, rank: usize) -> PartitionSpec {
        let mut entries = vec![Vec::new(); rank];
        let mut axes = Vec::new();
        for axis in mesh.axes() {
            let (name, size) = (axis.name(), axis.size());
            match size % 4 == 0 && self.below(3) == 0 {
                true => axes.extend([format!("{name}:(1)2"), format!("{name}:(2){}", size / 2)]),
                false => axes.push(name.to_owned()),
            }
        }
        for axis in axes {
            match self.below(rank + 1) {
                d if d < rank => entries[d].push(axis),
                _ => {}
            }
        }
        if self.below(2) == 0 {
            entries.iter_mut().for_each(|entry| entry.reverse());
        }
        PartitionSpec::new(entries)
    }
}

// ---- What moves ----

#[test]
fn the_collectives_of_common_moves() -> Result<()> {
    let runtime = runtime()?;
    let ty = TensorType::new(DType::F32, [16, 32]);
    let bytes = 16 * 32 * 4;
    let cases = [
        (
            on("x=8", ("x", ())),
            on("x=8", ((), "x")),
            Some(CollectiveKind::AllToAll),
            bytes / 8 * 7 / 8,
        ),
        (
            on("x=8", ("x", ())),
            on("x=8", ((), ())),
            Some(CollectiveKind::AllGather),
            bytes * 7 / 8,
        ),
        (on("x=8", ((), ())), on("x=8", ("x", ())), None, 0),
        (
            on("x=2,y=4", ("x", "y")),
            on("x=2,y=4", ("x", ())),
            Some(CollectiveKind::AllGather),
            bytes / 2 * 3 / 4,
        ),
        (on("x=2,y=4", ("x", ())), on("x=2,y=4", ("x", "y")), None, 0),
        (
            on("x=2,y=4", ("x", ())),
            on("x=2,y=4", (("x", "y"), ())),
            None,
            0,
        ),
        (
            on("x=2,y=4", ("x", "y")),
            on("x=2,y=4", (("x", "y"), ())),
            Some(CollectiveKind::AllToAll),
            bytes / 8 * 3 / 4,
        ),
        // Meshes of other shapes over the same devices.
        (
            on("x=8", ("x", ())),
            on("a=2,b=4", ("a", "b")),
            Some(CollectiveKind::AllToAll),
            bytes / 8 * 3 / 4,
        ),
        (
            on("a=2,b=4", ("a", ())),
            on("x=2,y=2,z=2", ("x", "z")),
            None,
            0,
        ),
        (
            on("x=8", ((), "x")),
            on("x=2,y=2,z=2", ((), ("x", "y"))),
            Some(CollectiveKind::AllGather),
            bytes / 8,
        ),
    ];
    for (from, to, kind, sent) in cases {
        let plan = Reshard::plan(&runtime, &ty, &from, &to)?;
        let collectives = plan
            .collectives()
            .map(|report| report.collectives.as_slice());
        let kinds: Vec<CollectiveKind> = collectives
            .unwrap_or_default()
            .iter()
            .map(|c| c.kind)
            .collect();
        assert_eq!(kinds, kind.into_iter().collect::<Vec<_>>(), "{plan}");
        assert_eq!(
            (plan.bytes_sent(), plan.least_bytes()),
            (sent, sent),
            "{plan}"
        );
    }
    Ok(())
}

#[test]
fn a_plan_prints_what_it_costs() -> Result<()> {
    let ty = TensorType::new(DType::F32, [8, 8]);
    let plan = Reshard::plan(
        &runtime()?,
        &ty,
        &on("x=8", ("x", ())),
        &on("x=8", ((), "x")),
    )?;
    assert_eq!(
        plan.to_string(),
        "f32[8,8] from P(\"x\", _) on x=8 to P(_, \"x\") on x=8: 1 all-to-all, 28 bytes sent by a \
         device (at least 28)"
    );
    let plan = Reshard::plan(
        &runtime()?,
        &ty,
        &on("x=8", ((), ())),
        &on("x=8", ((), "x")),
    )?;
    assert_eq!(
        plan.to_string(),
        "f32[8,8] from P(_, _) on x=8 to P(_, \"x\") on x=8: no communication"
    );
    Ok(())
}

/// XLA's own programs send up to four times as much for two random pairs in five.
#[test]
fn no_device_sends_more_than_the_least() -> Result<()> {
    let runtime = runtime()?;
    let x = counting(&[24, 48]);
    let mut random = Random(1);
    for text in ["x=2,y=4", "x=2,y=2,z=2", "x=4,y=2"] {
        for _ in 0..25 {
            let [from, to] = [(); 2].map(|()| {
                let spec = random.spec(&mesh(text), 2);
                Sharding::new(mesh(text), spec)
            });
            let plan = Reshard::plan(&runtime, x.ty(), &from, &to)?;
            assert!(plan.bytes_sent() <= plan.least_bytes(), "{plan}");
            let moved = x.put(&runtime, &from)?.reshard(&to)?;
            assert_eq!(moved.sharding(), Some(&to));
            assert_eq!(moved.to_bytes()?, x.to_bytes()?, "{plan}");
        }
    }
    Ok(())
}

/// A device has room for its old block and its new one and little more: the whole array is nowhere.
#[test]
fn no_device_holds_more_than_its_blocks() -> Result<()> {
    let runtime = runtime()?;
    let ty = TensorType::new(DType::F32, [256, 512]);
    let cube = "x=2,y=2,z=2";
    for (from, to) in [
        (on("x=8", ("x", ())), on("x=8", ((), "x"))),
        (on("x=2,y=4", ("x", "y")), on("x=2,y=4", ("y", "x"))),
        (on(cube, (("z", "x"), ())), on(cube, ((), "x"))),
        (on("x=8", ("x", ())), on("x=4", ((), "x"))),
        (on("x=4", ("x", ())), on("x=8", ((), "x"))),
    ] {
        let plan = Reshard::plan(&runtime, &ty, &from, &to)?;
        let memory = plan.memory()?.unwrap();
        let blocks = memory.argument + memory.output;
        assert!(blocks < 256 * 512 * 4, "{plan}: {memory:?}");
        assert!(memory.peak <= blocks + blocks / 100, "{plan}: {memory:?}");
    }
    Ok(())
}

#[test]
fn equal_blocks_share_their_memory() -> Result<()> {
    let runtime = runtime()?;
    let x = counting(&[16, 4]).put(&runtime, &on("x=8", ("x", ())))?;
    for to in [
        on("a=2,b=4", (("a", "b"), ())),
        on("a=2,b=2,c=2", (("a", "b", "c"), ())),
        on("a=1,b=8", ("b", "a")),
    ] {
        let same = x.put(&runtime, &to)?;
        assert_eq!(same.sharding(), Some(&to));
        assert!(std::ptr::eq(&same.buffers()[5], &x.buffers()[5]));
        assert_eq!(same.to_bytes()?, x.to_bytes()?);
    }
    Ok(())
}

const DTYPES: [DType; 14] = [
    DType::Bool,
    DType::I4,
    DType::U4,
    DType::I8,
    DType::U16,
    DType::I32,
    DType::U64,
    DType::F8E4M3FN,
    DType::F8E5M2,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C64,
];

/// Bytes of every kind of element, of floats with all exponents: among them NaNs with and without a
/// sign.
fn bytes_of(ty: &TensorType) -> Vec<u8> {
    let byte = |i: usize| match ty.dtype {
        DType::Bool => (i % 3 == 1) as u8,
        DType::I4 | DType::U4 => (i % 8) as u8,
        _ => (i * 37 + i / 7) as u8,
    };
    (0..ty.host_bytes()).map(byte).collect()
}

fn from_bytes(runtime: &Runtime, ty: &TensorType, bytes: &[u8]) -> Result<Array> {
    let whole = Sharding::replicated(Mesh::single(), ty.rank());
    let all = |_: &[Range<usize>]| Ok::<_, Error>(bytes.to_vec());
    Array::from_callback_on(runtime, ty.clone(), &whole, all)
}

#[test]
fn every_element_type_keeps_its_bits() -> Result<()> {
    let runtime = runtime()?;
    let rows = on("x=2,y=2", (("y", "x"), ()));
    for dtype in DTYPES {
        let ty = TensorType::new(dtype, [8, 4]);
        let bytes = bytes_of(&ty);
        let x = from_bytes(&runtime, &ty, &bytes)?.put(&runtime, &rows)?;
        for to in [
            on("x=2,y=2", ((), "y")),
            on("x=4", ((), "x")),
            on("x=8", ("x", ())),
        ] {
            assert_eq!(x.put(&runtime, &to)?.to_bytes()?, bytes, "{dtype} {to}");
        }
    }
    Ok(())
}

/// Arrays of all kinds walk from sharding to sharding, over meshes of all kinds, and stay what they are.
#[test]
fn random_walks() -> Result<()> {
    let runtime = runtime()?;
    let meshes = [
        "x=8",
        "x=2,y=4",
        "x=2,y=2,z=2",
        "x=1,y=8",
        "x=2,y=3",
        "x=3",
        "x=4",
        "x=1",
        "x=16",
        "x=4,y=4",
        "x=2,y=8",
    ];
    let shapes: [&[usize]; 7] = [
        &[],
        &[48],
        &[24, 48],
        &[0, 48],
        &[17, 48],
        &[2, 6, 16],
        &[1, 1],
    ];
    let mut random = Random(7);
    let (mut moved, mut refused) = (0, 0);
    for _ in 0..40 {
        let ty = TensorType::new(random.of(&DTYPES), random.of(&shapes));
        let bytes = bytes_of(&ty);
        let mut array = from_bytes(&runtime, &ty, &bytes)?;
        for _ in 0..8 {
            let mesh = mesh(random.of(&meshes));
            let spec = random.spec(&mesh, ty.rank());
            let fits = spec.validate(&mesh, &ty.shape).is_empty();
            let to = Sharding::new(mesh, spec);
            let next = array.put(&runtime, &to);
            if !fits {
                let text = message(next);
                assert!(text.contains("is not divisible by"), "{text}");
                refused += 1;
                continue;
            }
            array = next?;
            assert_eq!(array.sharding(), Some(&to));
            assert_eq!(array.to_bytes()?, bytes, "{ty} {to}");
            moved += 1;
        }
    }
    assert!(moved > 200 && refused > 30, "{moved} {refused}");
    Ok(())
}

#[test]
fn other_numbers_of_devices() -> Result<()> {
    let runtime = runtime()?;
    let x = counting(&[24, 48]);
    let bytes = 24 * 48 * 4;
    // Each has its bound: what all devices of the target together lack.
    for (from, to, total) in [
        (on("x=8", ("x", ())), on("x=4", ("x", ())), bytes / 8 * 7),
        (on("x=4", ("x", ())), on("x=8", ("x", ())), bytes / 8 * 7),
        (on("x=8", ("x", ())), on("x=1", ((), ())), bytes / 8 * 7),
        (
            on("x=2", ("x", ())),
            on("x=6", ((), ())),
            bytes / 2 * 2 + bytes * 4,
        ),
        // Of their 192 new elements two devices lack 64 each, two 128, and two all.
        (
            on("x=2,y=3", ("x", "y")),
            on("x=3,y=2", ("x", "y")),
            2 * (64 + 128 + 192) * 4,
        ),
    ] {
        let plan = Reshard::plan(&runtime, x.ty(), &from, &to)?;
        assert_eq!(plan.least_total_bytes(), total, "{plan}");
        let moved = x.put(&runtime, &from)?.put(&runtime, &to)?;
        assert_eq!(moved.to_bytes()?, x.to_bytes()?, "{plan}");
    }
    Ok(())
}

#[test]
fn between_two_clients() -> Result<()> {
    let (two, four) = (Runtime::cpu(2)?, Runtime::cpu(4)?);
    let x = counting(&[8, 12]);
    let split = x.put(&two, &on("x=2", ("x", ())))?;
    let wider = split.put(&four, &on("x=2,y=2", ("y", "x")))?;
    assert_eq!(wider.to_bytes()?, x.to_bytes()?);
    let back = wider.put(&two, &on("x=2", ((), "x")))?;
    assert_eq!(back.to_bytes()?, x.to_bytes()?);
    assert_eq!(back.buffers().len(), 2);
    // Its own client has too few devices, so it goes to the process's.
    let away = back.reshard(&on("x=8", ("x", ())))?;
    assert_eq!(away.to_bytes()?, x.to_bytes()?);
    // An array outlives its runtime.
    drop((two, four));
    assert_eq!(
        back.reshard(&on("x=2", ((), ())))?.to_bytes()?,
        x.to_bytes()?
    );
    assert_eq!(
        message(x.put(&Runtime::cpu(2)?, &on("x=4", ("x", ())))),
        "mesh x=4 needs 4 devices, 2 are there: use a mesh such as x=2, or run with 4 devices"
    );
    Ok(())
}

/// Moves that nobody awaits, from two threads at once, beside a program with collectives of its own.
#[test]
fn many_moves_at_once() -> Result<()> {
    let runtime = runtime()?;
    let layout = Layout::new(mesh("x=8")).shard("rows", "x");
    let norm = jit(|x: Tensor| {
        x.shard(&[Dim::Logical("rows"), Dim::Unsharded])
            .square()
            .sum(..)
    });
    let norm = norm.layout(&layout).runtime(&runtime);
    let start = counting(&[16, 24]);
    let expected = norm.call(start.clone())?.item::<f32>()?;
    let walk = || -> Result<()> {
        // An all-to-all of XLA's, an exchange among 8 devices, and one among 4 and 8.
        let stops = [
            on("x=8", ((), "x")),
            on("x=2,y=2,z=2", (("z", "x"), ())),
            on("x=2,y=2,z=2", ((), "x")),
            on("x=4", ("x", ())),
            on("x=8", ("x", ())),
        ];
        let mut x = start.put(&runtime, &stops[4])?;
        let mut norms = Vec::new();
        for _ in 0..60 {
            for stop in &stops {
                x = x.put(&runtime, stop)?;
            }
            norms.push(norm.call(x.clone())?);
        }
        for value in norms {
            assert_eq!(value.item::<f32>()?, expected);
        }
        assert_eq!(x.to_bytes()?, start.to_bytes()?);
        Ok(())
    };
    std::thread::scope(|scope| {
        let walks = [scope.spawn(walk), scope.spawn(walk)];
        walks.into_iter().try_for_each(|walk| walk.join().unwrap())
    })
}

// ---- Donation ----

#[test]
fn a_donated_array_is_gone() -> Result<()> {
    let runtime = runtime()?;
    let x = counting(&[8, 8]).put(&runtime, &on("x=8", ("x", ())))?;
    let (clone, columns) = (x.clone(), on("x=8", ((), "x")));
    let moved = x.reshard_donated(&columns)?;
    assert_eq!(moved.to_bytes()?, counting(&[8, 8]).to_bytes()?);
    assert!(clone.buffers().iter().all(|buffer| buffer.is_deleted()));
    assert_eq!(
        message(clone.reshard(&columns)),
        "resharding: this buffer (f32[8,8] on device 0) was donated or deleted and holds no data any \
         more; use the result that took its memory, or do not donate it"
    );
    assert!(message(clone.reshard(&on("x=8", ((), ())))).contains("was donated or deleted"));
    assert!(message(clone.to_host()).contains("was donated or deleted"));
    // What is refused is not lost.
    let kept = moved.clone();
    assert!(moved.reshard_donated(&on("x=3", ("x", ()))).is_err());
    kept.wait()?;
    // Nor is what has nothing to move.
    let same = kept
        .clone()
        .reshard_donated(&on("x=2,y=4", ((), ("x", "y"))))?;
    assert_eq!(same.to_bytes()?, kept.to_bytes()?);
    Ok(())
}

// ---- Blocks ----

#[test]
fn a_callback_gives_each_block_once() -> Result<()> {
    let mut asked: Vec<Vec<Range<usize>>> = Vec::new();
    let sharding = on("x=2,y=4", ("y", ()));
    let x = Array::from_callback([8, 3], &sharding, |bounds| {
        asked.push(bounds.to_vec());
        let rows = bounds[0].clone();
        Ok::<_, Error>(
            rows.flat_map(|i| [0, 1, 2].map(|j| (3 * i + j) as i32))
                .collect(),
        )
    })?;
    let rows = [0..2, 2..4, 4..6, 6..8];
    assert_eq!(asked, rows.map(|rows| vec![rows, 0..3]));
    assert_eq!(x.to_vec::<i32>()?, (0..24).collect::<Vec<_>>());
    let shards = x.shards()?;
    let seen: Vec<_> = shards
        .iter()
        .map(|s| (s.device(), s.replica(), s.bounds()[0].start))
        .collect();
    let expected = [
        (0, 0, 0),
        (1, 0, 2),
        (2, 0, 4),
        (3, 0, 6),
        (4, 1, 0),
        (5, 1, 2),
        (6, 1, 4),
        (7, 1, 6),
    ];
    assert_eq!(seen, expected);
    assert_eq!(shards[5].ty(), TensorType::new(DType::I32, [2, 3]));
    assert_eq!(shards[5].to_vec::<i32>()?, (6..12).collect::<Vec<_>>());
    assert_eq!(x.distinct_shards()?.len(), 4);
    assert!(message(shards[5].to_vec::<f32>()).contains("cannot be read as f32"));
    assert!(counting(&[2]).shards()?.is_empty());
    Ok(())
}

#[test]
fn a_callback_that_fails() -> Result<()> {
    let rows = on("x=4", ("x", ()));
    let failing = |bounds: &[Range<usize>]| match bounds[0].start {
        2 => Err("no such file"),
        _ => Ok(vec![0f32; 6]),
    };
    assert_eq!(
        message(Array::from_callback([4, 6], &rows, failing)),
        "array f32[4,6]: the callback for its block [2..3, 0..6] failed: no such file"
    );
    let short = |_: &[Range<usize>]| Ok::<_, Error>(vec![0i64; 5]);
    assert_eq!(
        message(Array::from_callback([4, 6], &rows, short)),
        "array i64[4,6]: the callback for its block [0..1, 0..6] failed: it gave 5 elements (40 \
         bytes), and the block has 6 (48 bytes)"
    );
    let ty = TensorType::new(DType::Bool, [4, 1]);
    let odd = |_: &[Range<usize>]| Ok::<_, Error>(vec![2]);
    assert_eq!(
        message(Array::from_callback_on(&runtime()?, ty, &rows, odd)),
        "array bool[4,1]: the callback for its block [0..1, 0..1] failed: a boolean is 0 or 1, and it \
         gave another byte"
    );
    let never = |_: &[Range<usize>]| -> Result<Vec<f32>> { panic!("it is not asked") };
    assert_eq!(
        message(Array::from_callback([17, 6], &on("x=8", ("x", ())), never)),
        "the layout does not fit the program:\
         \n  array f32[17,6]: dimension 0 of size 17 is not divisible by x=8: make the size a multiple \
         of 8, choose mesh sizes that divide 17, or leave the dimension unsplit"
    );
    Ok(())
}

// ---- Trees ----

#[derive(Clone, Debug, Module)]
struct State<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
    step: L,
}

#[shard]
fn train(state: State, #[shard(batch, embed)] x: Tensor) -> (State, Tensor) {
    let step = state.step + 1;
    let loss = |state: State| {
        let hidden = x.dot(state.up).gelu();
        (hidden.dot(state.down) - x).square().mean(..)
    };
    let (loss, gradient) = value_and_grad(loss)(State {
        step: state.step.cast(DType::F32),
        ..state
    });
    let next = State {
        up: state.up - gradient.up * 0.1,
        down: state.down - gradient.down * 0.1,
        step,
    };
    (next, loss)
}

fn fresh() -> State<Array> {
    let values: Vec<f32> = (0..16 * 32)
        .map(|i| ((i * 37) % 19) as f32 / 50.0 - 0.18)
        .collect();
    State {
        up: Array::from_slice(&values, [16, 32]).unwrap(),
        down: Array::from_slice(&values, [32, 16]).unwrap(),
        step: Array::scalar(0i32),
    }
}

#[test]
fn a_state_goes_on_under_another_layout() -> Result<()> {
    let batch = counting(&[8, 16]).to_vec::<f32>()?;
    let batch: Vec<f32> = batch
        .iter()
        .map(|v| (v * 7.0) % 11.0 / 10.0 - 0.5)
        .collect();
    let batch = Array::from_slice(&batch, [8, 16])?;
    let layouts = [
        Layout::ddp(mesh("data=8"))?,
        Layout::fsdp(mesh("data=8"))?,
        Layout::megatron(mesh("data=2,model=4"))?,
        Layout::ddp(mesh("data=4"))?,
    ];
    let (mut moving, mut staying) = (fresh(), fresh());
    let alone = jit(train);
    for layout in &layouts {
        let step = jit(train).layout(layout).donate(&[0]);
        moving = moving.place_donated(layout)?;
        for _ in 0..2 {
            let (loss, expected);
            (moving, loss) = step.call((moving, batch.clone()))?;
            (staying, expected) = alone.call((staying, batch.clone()))?;
            let (loss, expected) = (loss.item::<f32>()?, expected.item::<f32>()?);
            assert!(
                (loss - expected).abs() <= 1e-5 * expected.abs(),
                "{loss} {expected}"
            );
        }
    }
    assert_eq!(moving.step.item::<i32>()?, 8);
    // Under fsdp each device has an eighth of a parameter.
    let split = moving.place(&layouts[1])?;
    assert_eq!(split.up.buffers()[3].dims(), [2, 32]);
    // On the host any layout takes them.
    let host = split.to_host()?;
    assert!(host.up.sharding().is_none());
    assert_eq!(host.up.to_bytes()?, split.up.to_bytes()?);
    assert!(jit(train).layout(&layouts[2]).call((host, batch)).is_ok());
    Ok(())
}

#[test]
fn a_layout_speaks_of_paths_and_of_parts_of_axes() -> Result<()> {
    let layout = Layout::new(mesh("x=8"))
        .shard("embed", "x:(1)2")
        .override_spec("down", ("x:(2)4", "?"))
        .override_spec("step", ());
    let state = fresh().place(&layout)?;
    assert_eq!(state.up.buffers()[3].dims(), [8, 32]);
    assert_eq!(state.down.buffers()[3].dims(), [8, 16]);
    assert_eq!(state.down.sharding(), Some(&on("x=8", ("x:(2)4", ()))));
    // An override says of a leaf without annotation where it lies, so it does not stay on the host.
    assert_eq!(state.step.sharding(), Some(&on("x=8", ())));
    let step = jit(train).layout(&layout);
    step.call((state, counting(&[8, 16])))?;
    Ok(())
}

/// Optimizer state lies as the layout says of state: under ZeRO-1 an eighth on each device, beside
/// parameters that are whole.
#[test]
fn optimizer_state_moves_as_state() -> Result<()> {
    let adam = AdamW::default();
    let init = |model: State| {
        let moments = adam.init(&model);
        (model, moments)
    };
    let model = fresh();
    let step = Array::from_slice(&[0f32], [])?;
    let (model, moments) = jit(init).call(State { step, ..model })?;
    let layout = Layout::zero1(mesh("data=8"))?;
    let (model, moments) = (model, moments).place(&layout)?;
    let whole = |array: &Array| array.buffers()[7].dims() == array.shape();
    assert!(whole(&model.up) && whole(&model.down));
    for array in [&moments.first.up, &moments.second.down] {
        let elements: usize = array.buffers()[7].dims().iter().product();
        assert_eq!(elements * 8, 16 * 32);
    }
    Ok(())
}

#[test]
fn a_tree_that_cannot_be_placed() -> Result<()> {
    let layout = Layout::new(mesh("x=8"))
        .shard("embed", "x")
        .shard("mlp", "x");
    let text = message(fresh().place(&layout));
    assert!(
        text.contains("`up` f32[16,32]: mesh axis `x` is wanted twice"),
        "{text}"
    );
    assert!(text.contains("`down` f32[32,16]"), "{text}");
    let layout = Layout::new(mesh("x=8")).shard("embed", "x");
    let placed = fresh().place(&layout)?;
    let gone = placed.clone();
    let moved = placed.place_donated(&Layout::new(mesh("x=8")).shard("mlp", "x"))?;
    assert_eq!(
        message(gone.to_host()),
        "`up` f32[16,32]: copying to the host: this buffer (f32[2,32] on device 0) was donated or \
         deleted and holds no data any more; use the result that took its memory, or do not donate it"
    );
    moved.wait()?;
    // What is on the host without annotation stays there; what is elsewhere comes along.
    assert!(moved.step.sharding().is_none());
    let step = moved.step.put(&runtime()?, &on("y=4", ()))?;
    let moved = State { step, ..moved }.place(&layout)?;
    assert_eq!(moved.step.sharding(), Some(&on("x=8", ())));
    // One array at two places moves once.
    let tied = [moved.clone(), moved].place(&Layout::single())?;
    assert!(std::ptr::eq(
        &tied[0].up.buffers()[0],
        &tied[1].up.buffers()[0]
    ));
    Ok(())
}

#[test]
fn a_function_says_where_it_wants_its_arguments() -> Result<()> {
    let layout = Layout::megatron(mesh("data=2,model=4"))?;
    let step = jit(train).layout(&layout);
    let state = fresh().place(&Layout::fsdp(mesh("data=8"))?)?;
    let (state, batch) = step.place((state, counting(&[8, 16])))?;
    assert_eq!(
        state.up.sharding(),
        Some(&on("data=2,model=4", ((), "model")))
    );
    assert_eq!(batch.sharding(), Some(&on("data=2,model=4", ("data", ()))));
    step.call((state, batch))?;
    Ok(())
}

#[test]
fn a_model_is_made_of_blocks() -> Result<()> {
    let layout = Layout::fsdp(mesh("data=8"))?;
    let (types, whole) = (fresh().types(), fresh());
    let mut asked = 0;
    let made = types.arrays_from(&layout, |path, ty, bounds| {
        asked += 1;
        let leaf = match path.to_string().as_str() {
            "up" => &whole.up,
            "down" => &whole.down,
            _ => return whole.step.to_bytes(),
        };
        let bytes = leaf.to_bytes()?;
        let width = 4 * ty.shape[1];
        assert_eq!(bounds[1].len() * bounds[0].len(), 64);
        let row = |i: usize| bytes[i * width..][4 * bounds[1].start..4 * bounds[1].end].to_vec();
        Ok::<_, Error>(bounds[0].clone().flat_map(row).collect())
    })?;
    assert_eq!(asked, 8 + 8 + 1);
    assert_eq!(made.up.to_bytes()?, whole.up.to_bytes()?);
    assert_eq!(made.down.to_bytes()?, whole.down.to_bytes()?);
    assert_eq!(made.step.item::<i32>()?, 0);
    let failing = types.arrays_from(&layout, |path, _, bounds| match path.to_string().as_str() {
        "down" => Err(std::io::Error::other("the file ends early")),
        _ => Ok(vec![
            0;
            4 * bounds.iter().map(|b| b.len()).product::<usize>()
        ]),
    });
    assert_eq!(
        message(failing),
        "`down` f32[32,16]: the callback for its block [0..32, 0..2] failed: the file ends early"
    );
    Ok(())
}
