//! Mistakes of a user, each an error that says what is wrong, where, and what to do.
//!
//! Messages are part of the interface, so the tests compare their full text.

#[path = "common/messages.rs"]
mod messages;

use shardax::prelude::*;
use shardax::xla::{self, Error};
use shardax::{Runtime, Sharding, custom_call};

use messages::{message, ones, place};

#[shard(a)]
fn doubled(x: Tensor) -> Tensor {
    x * 2.0
}

fn data8() -> Mesh {
    Mesh::new([("data", 8)]).unwrap()
}

fn data2_model4() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

// ---- Meshes and layouts ----

#[test]
fn a_mesh_that_is_not_that_of_the_devices() -> xla::Result<()> {
    let eight = Runtime::shared(8)?;
    assert_eq!(eight.client().device_count(), 8);
    let layout = Layout::new(Mesh::new([("data", 16)]).unwrap());
    assert_eq!(
        message(
            jit(|x: Tensor| x * 2.0)
                .layout(&layout)
                .runtime(&eight)
                .call(ones(&[3]))
        ),
        "mesh data=16 needs 16 devices, 8 are there: use a mesh such as data=8, or run with 16 devices"
    );
    assert_eq!(
        data2_model4().check_devices(6).unwrap_err().to_string(),
        "mesh data=2 x model=4 needs 8 devices, 6 are there: use a mesh such as data=2 x model=3, or \
         run with 8 devices"
    );
    // XLA makes a client of more devices, and then compiles nothing for them.
    let layout = Layout::new(Mesh::new([("data", 2049)]).unwrap());
    assert_eq!(
        message(jit(|x: Tensor| x * 2.0).layout(&layout).call(ones(&[3]))),
        "2049 virtual CPU devices were asked for, one for each of the mesh or as many as the runtime was to have: there may \
         be 1 to 2048"
    );
    Ok(())
}

#[test]
fn rules_with_unknown_and_repeated_axes() {
    let layout = Layout::new(data2_model4())
        .shard("batch", "dta")
        .shard("embed", "pipeline")
        .shard("mlp", ("model", "model"));
    assert_eq!(
        message(jit(|x: Tensor| x * 2.0).layout(&layout).call(ones(&[3]))),
        "the layout does not fit mesh data=2 x model=4:\
         \n  - rule for `batch`: the mesh has no axis `dta`: did you mean `data`? There are data, model\
         \n  - rule for `embed`: the mesh has no axis `pipeline`: there are data, model\
         \n  - rule for `mlp`: mesh axis `model` is wanted twice, by the same rule: an axis splits one \
         dimension of an array, once"
    );
}

#[test]
fn annotations_with_unknown_and_repeated_axes() {
    let layout = Layout::new(data2_model4())
        .shard("embed", "model")
        .shard("mlp", "model");
    const LINE: u32 = line!() + 3;
    #[shard]
    fn program(x: Tensor) -> Tensor {
        #[shard("date", _)]
        let y = x * 2.0;
        #[shard(embed, mlp)]
        let z = y * 2.0;
        z
    }
    assert_eq!(
        message(jit(program).layout(&layout).call(ones(&[8, 8]))),
        format!(
            "the layout does not fit the program:\
             \n  a value f32[8,8] annotated (\"date\", _): dimension 0: the mesh has no axis `date`: did \
             you mean `data`? There are data, model\
             \n    --> {}\
             \n  a value f32[8,8] annotated (embed, mlp): mesh axis `model` is wanted twice, by dimension \
             0 (`embed`) and by dimension 1 (`mlp`): an axis splits one dimension of an array, once\
             \n    --> {}",
            place(LINE, "shard("),
            place(LINE + 2, "shard("),
        )
    );
}

/// What is said of an annotation with a name less than there are dimensions.
const NAMES: &str = "write one name for each dimension, `_` for one that is never split; where the first dimension is a batch \
                     of what the function is written for, run it by `vmap`, and where it is one of layers, hold them in a \
                     `Stack`: each names that dimension itself";

#[test]
fn an_annotation_with_the_wrong_number_of_entries() {
    const LINE: u32 = line!() + 3;
    #[shard]
    fn program(x: Tensor) -> Tensor {
        #[shard(batch)]
        let y = x * 2.0;
        y
    }
    assert_eq!(
        message(jit(program).call(ones(&[8, 8]))),
        format!(
            "`shard`: the annotation (batch) has 1 name, the tensor f32[8,8] has 2 dimensions\
             \n  --> {}\
             \n  help: {NAMES}",
            place(LINE, "shard("),
        )
    );

    const FIELD: u32 = line!() + 3;
    #[derive(Clone, Debug, Module)]
    struct Weight<L = Tensor> {
        #[shard(embed)]
        w: L,
    }
    let layout = Layout::new(data8()).shard("embed", "data");
    let use_it = |weight: Weight| weight.w.sum(..);
    assert_eq!(
        message(
            jit(use_it)
                .layout(&layout)
                .call(Weight { w: ones(&[8, 8]) })
        ),
        format!(
            "the layout does not fit the program:\
             \n  argument `w` f32[8,8] (field `w` of `Weight`): 1 entry for an array of shape [8, 8] with 2 dimensions: \
             write one entry for each dimension, `_` where it is not split\
             \n    --> {}\
             \n    help: if the first dimension is one of layers, or of models that `vmap` runs side by side, hold them in \
             a `Stack`: it names that dimension `layers`, and the annotation stays that of one of them",
            place(FIELD, "shard(embed)")
        )
    );
    // The gradient uses the leaf as a parameter before the layout asks where it lies.
    const GRAD: u32 = line!() + 1;
    let slope = |weight: Weight| grad(use_it)(weight);
    let weight = Weight { w: ones(&[8, 8]) };
    assert_eq!(
        message(jit(slope).layout(&layout).call(weight)),
        format!(
            "`shard`: the annotation (embed) of field `w` of `Weight` at {} has 1 name, the leaf `w` f32[8,8] has 2 \
             dimensions\
             \n  --> {}\
             \n  help: {NAMES}",
            place(FIELD, "shard(embed)"),
            place(GRAD, "grad(use_it)"),
        )
    );
    // Two names more are no batch.
    let program = |x: Tensor| x.shard(&[]);
    let text = message(jit(program).call(ones(&[8, 8])));
    assert!(text.ends_with("`_` for one that is never split"), "{text}");
}

#[derive(Clone, Debug, Module)]
struct Mlp<L = Tensor> {
    #[shard(embed, mlp)]
    up: L,
    #[shard(mlp, embed)]
    down: L,
}

#[test]
fn dimensions_that_do_not_divide_are_reported_together() {
    let layout = Layout::new(data2_model4())
        .shard("batch", "data")
        .shard("mlp", "model");
    let mlp = Mlp {
        up: ones(&[5, 6]),
        down: ones(&[6, 5]),
    };
    const LINE: u32 = line!() + 3;
    #[shard]
    fn program(mlp: Mlp, x: Tensor) -> (Mlp, Tensor) {
        #[shard(batch, embed)]
        let y = x.dot(mlp.up).dot(mlp.down);
        (mlp, y)
    }
    assert_eq!(
        message(jit(program).layout(&layout).call((mlp, ones(&[3, 5])))),
        format!(
            "the layout does not fit the program:\
             \n  argument `0.up` f32[5,6]: dimension 1 (`mlp`) of size 6 is not divisible by model=4: \
             make the size a multiple of 4, choose mesh sizes that divide 6, or remove the rule for `mlp`\
             \n    and argument `0.down` f32[6,5]\
             \n    and result `0.up` f32[5,6]\
             \n    and result `0.down` f32[6,5]\
             \n  a value f32[3,5] annotated (batch, embed): dimension 0 (`batch`) of size 3 is not \
             divisible by data=2: make the size a multiple of 2, choose mesh sizes that divide 3, or \
             remove the rule for `batch`\
             \n    --> {}",
            place(LINE, "shard("),
        )
    );
}

#[test]
fn a_mesh_axis_that_does_not_divide_an_array_put_there() -> xla::Result<()> {
    let layout = Layout::new(data8()).shard("a", "data");
    let split = jit(doubled).layout(&layout).call(ones(&[8]))?;
    let runtime = Runtime::shared(8)?;
    let sharding: Sharding = split.sharding().unwrap().clone();
    assert_eq!(
        message(ones(&[6]).put(&runtime, &sharding)),
        "the layout does not fit the program:\
         \n  array f32[6]: dimension 0 of size 6 is not divisible by data=8: make the size a multiple of \
         8, choose mesh sizes that divide 6, or leave the dimension unsplit"
    );
    Ok(())
}

// ---- Mistakes of the traced function ----

/// Traces a closure of two arguments of these shapes that is written on one line; the error must
/// begin so, then name the line and the piece of it, and end with the help.
macro_rules! mistake {
    ($f:expr, $x:expr, $y:expr, at $piece:literal, $problem:literal, help $help:literal) => {{
        let text = message(jit($f).call(($x, $y)));
        assert_eq!(
            text,
            format!(
                "{}\n  --> {}\n  help: {}",
                $problem,
                place(line!(), $piece),
                $help
            )
        );
    }};
    ($f:expr, $x:expr, $y:expr, at $piece:literal, $problem:literal) => {{
        let text = message(jit($f).call(($x, $y)));
        assert_eq!(
            text,
            format!("{}\n  --> {}", $problem, place(line!(), $piece))
        );
    }};
}

#[test]
#[rustfmt::skip]
fn shapes_that_do_not_match() {
    let (a, b, c) = (|| ones(&[2, 3]), || ones(&[4]), || ones(&[2, 4]));
    mistake!(|x: Tensor, y: Tensor| x + y, a(), b(), at "x + y",
        "`add`: shapes f32[2,3] and f32[4] do not broadcast together: 3 against 4 in dimension 1",
        help "shapes are aligned at the last dimension; sizes there must be equal or 1");
    mistake!(|x: Tensor, y: Tensor| x.dot(y), a(), a(), at "dot(y)",
        "`dot`: dimension 1 of the left operand f32[2,3] (3) is contracted with dimension 0 of the right operand f32[2,3] (2)",
        help "contracted dimensions must have the same size");
    mistake!(|x: Tensor, y: Tensor| einsum("ij,jk->ik", [x, y]), a(), a(), at "einsum(",
        "`einsum`: \"ij,jk->ik\": `j` is 3 in operand 0 and 2 in operand 1");
    mistake!(|x: Tensor, y: Tensor| concatenate([x, y], 0), a(), c(), at "concatenate(",
        "`concatenate`: operand 1 is f32[2,4], operand 0 is f32[2,3]: they may differ in dimension 0 alone",
        help "`stack` joins along a new dimension");
    mistake!(|x: Tensor, _: Tensor| x.reshape([4, 2]), a(), b(), at "reshape(",
        "`reshape`: f32[2,3] has 6 elements, f32[4,2] has 8",
        help "the sizes must multiply to as many; -1 for one of them finds it");
    mistake!(|x: Tensor, _: Tensor| x.slice(0, 1..5), a(), b(), at "slice(",
        "`slice`: dimension 0 of f32[2,3] has no range 1..5",
        help "it has 2 elements, and a range does not end before it begins");
    mistake!(|x: Tensor, _: Tensor| x.sum(5), a(), b(), at "sum(5)",
        "`sum`: f32[2,3] has no axis 5",
        help "its axes are 0 to 1, or -2 to -1 from the last");
    mistake!(|x: Tensor, y: Tensor| x.take(y, 0), a(), b(), at "take(",
        "`take`: the indices are f32[4], not integers",
        help "convert them with `.cast(DType::I32)`");
    mistake!(|x: Tensor, _: Tensor| grad(|x: Tensor| x * 2.0)(x), a(), b(), at "grad(",
        "`grad`: the loss is f32[2,3], not a floating-point scalar",
        help "reduce it, for example with `.mean(..)`");
}

#[test]
#[rustfmt::skip]
fn mistakes_inside_of_closures_name_the_line_inside() {
    let (x, layers) = (|| ones(&[2, 3]), || ones(&[5, 4, 4]));
    mistake!(|x: Tensor, w: Tensor| scan(x, w, |h: Tensor, w: Tensor| (h.dot(w), ())).0, x(), layers(), at "dot(w)",
        "`dot`: dimension 1 of the left operand f32[2,3] (3) is contracted with dimension 0 of the right operand f32[4,4] (4)",
        help "contracted dimensions must have the same size");
    mistake!(|x: Tensor, w: Tensor| scan(x, w, |h: Tensor, w: Tensor| (h.dot(w), ())).0, x(), ones(&[5, 3, 4]), at "scan(",
        "`scan`: the carry changes its type: the carry goes in as f32[2,3] and comes out as f32[2,4]",
        help "start with a carry of the shape and type that the body returns; what each turn adds to the results is the body's second value");
    mistake!(|x: Tensor, y: Tensor| grad(|x: Tensor| remat(|x: Tensor| (x + y).sum(..))(x))(x), x(), ones(&[4]), at "(x + y)",
        "`add`: shapes f32[2,3] and f32[4] do not broadcast together: 3 against 4 in dimension 1",
        help "shapes are aligned at the last dimension; sizes there must be equal or 1");
}

#[test]
fn after_a_mistake_the_next_call_works() -> xla::Result<()> {
    let double = jit(|x: Tensor, y: Tensor| x + y);
    assert!(double.call((ones(&[3]), ones(&[4]))).is_err());
    assert_eq!(
        double.call((ones(&[3]), ones(&[3])))?.to_vec::<f32>()?,
        [2.0; 3]
    );
    Ok(())
}

#[test]
fn a_panic_of_the_user_goes_on_and_the_next_call_works() -> xla::Result<()> {
    let picky = jit(|x: Tensor| {
        assert!(x.size(0) != 3, "three is too many");
        let (last, ()) = scan(x, Tensor::arange(DType::F32, 4), |h: Tensor, i: Tensor| {
            assert!(h.size(0) != 5, "five inside of a loop");
            (h + i, ())
        });
        last
    });
    for (size, words) in [(3, "three is too many"), (5, "five inside of a loop")] {
        let call = || picky.call(ones(&[size]));
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
            .err()
            .unwrap();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&words));
    }
    assert_eq!(picky.call(ones(&[2]))?.to_vec::<f32>()?, [7.0; 2]);
    Ok(())
}

#[test]
fn a_tensor_is_used_after_its_trace() {
    let kept = std::cell::Cell::new(None);
    let keep = jit(|x: Tensor| {
        kept.set(Some(x));
        x * 2.0
    });
    keep.call(ones(&[3])).unwrap();
    let old = kept.get().unwrap();
    let line = line!() + 1;
    let text = message(jit(move |x: Tensor| x + old).call(ones(&[3])));
    assert!(text.contains(&place(line, "x + old")), "{text}");
    assert!(
        text.starts_with("`add`: a tensor of another trace is used"),
        "{text}"
    );
}

#[test]
fn a_program_inside_of_a_trace_takes_nothing_from_it() -> xla::Result<()> {
    let line = line!() + 2;
    let outer = jit(|x: Tensor| {
        let inner = jit(move |y: Tensor| y * x).call(ones(&[2]));
        match inner {
            Ok(_) => x,
            Err(error) => panic!("{error}"),
        }
    });
    let call = || outer.call(ones(&[2]));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
        .err()
        .unwrap();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(
        text.starts_with("`mul`: a tensor of another trace is used"),
        "{text}"
    );
    assert!(text.contains(&place(line, "y * x")), "{text}");
    let line = line!() + 2;
    let outer = jit(|x: Tensor| {
        let inner = jit(move |_: Tensor| x).call(ones(&[2]));
        assert!(message(inner).contains(&place(line, "call(")));
        x * 2.0
    });
    assert_eq!(outer.call(ones(&[2]))?.to_vec::<f32>()?, [2.0; 2]);
    Ok(())
}

// ---- Arguments ----

#[test]
fn another_element_type_than_the_program_can_take() -> xla::Result<()> {
    let line = line!() + 1;
    let pick = jit(|table: Tensor, indices: Tensor| table.take(indices, 0));
    let whole = Array::from_slice(&[2i32, 0], [2])?;
    assert_eq!(pick.call((ones(&[4]), whole))?.to_vec::<f32>()?, [1.0; 2]);
    // Other types are another program: what does not fit is found where it is used.
    assert_eq!(
        message(pick.call((ones(&[4]), ones(&[2])))),
        format!(
            "`take`: the indices are f32[2], not integers\n  --> {}\
             \n  help: convert them with `.cast(DType::I32)`",
            place(line, "take("),
        )
    );
    // A donated state must come out as it went in.
    let step = jit(|state: Tensor, x: Tensor| (state + x, x.sum(..)))
        .name("step")
        .donate(&[0]);
    let (state, _) = step.call((ones(&[3]), ones(&[3])))?;
    assert_eq!(state.dtype(), DType::F32);
    let integers = Array::from_slice(&[1i32; 3], [3])?;
    assert_eq!(
        message(step.call((integers, ones(&[3])))),
        "cannot call `step`:\
         \n  argument `0` i32[3] is donated, and no result of the same type and sharding is there to take \
         its memory: return its new value, or do not donate it"
    );
    assert_eq!(
        message(state.to_vec::<i32>()),
        "f32[3] cannot be read as i32; read it as f32, or convert it in the program with `.cast(...)`"
    );
    assert_eq!(
        message(state.item::<f32>()),
        "f32[3] has not exactly one element; read it with `to_vec`"
    );
    assert_eq!(
        message(Array::from_slice(&[1f32, 2.0], [3])),
        "2 elements were given for f32[3], which has 3"
    );
    Ok(())
}

#[test]
fn a_donated_array_is_used_again() -> xla::Result<()> {
    let layout = Layout::new(data8()).shard("a", "data");
    for layout in [Layout::single(), layout] {
        let double = jit(|x: Tensor| x * 2.0)
            .name("double")
            .layout(&layout)
            .donate(&[0]);
        let first = double.call(ones(&[8]))?;
        let second = double.call(first.clone())?;
        // Once for all devices.
        let gone = "the argument f32[8] was donated to an earlier call and holds no data any more: use the \
                    result that took its memory";
        let here = line!() + 1;
        let told = double.call(first.clone()).unwrap_err().to_string();
        let (told, place) = told.split_once("\n  --> ").unwrap();
        assert_eq!(told, format!("cannot call `double`:\n  {gone}"));
        assert!(
            place.starts_with(&format!("tests/bad_input.rs:{here}:")),
            "{place}"
        );
        let add = jit(|x: Tensor, y: Tensor| x + y)
            .name("add")
            .layout(&layout);
        let gone = gone.replace("the argument", "argument `1`");
        assert_eq!(
            message(add.call((second.clone(), first.clone()))),
            format!("cannot call `add`:\n  {gone}")
        );
        let text = message(first.to_vec::<f32>());
        assert!(
            text.contains("was donated or deleted and holds no data any more"),
            "{text}"
        );
        assert!(first.wait().is_err());
        // Nothing happened to the other one.
        assert_eq!(second.to_vec::<f32>()?, [4.0; 8]);
    }
    Ok(())
}

#[test]
fn a_donated_array_is_also_another_argument() -> xla::Result<()> {
    let add = |x: Tensor, y: Tensor| (x + y, y.sum(..));
    let x = jit(|x: Tensor| x * 1.0).call(ones(&[3]))?;
    let first = jit(add).name("add").donate(&[0]);
    assert_eq!(
        message(first.call((x.clone(), x.clone()))),
        "cannot call `add`:\
         \n  argument `1` f32[3] is the same array as an argument that is donated, of this call or of one \
         in another thread: pass a copy, or do not donate it"
    );
    let second = jit(add).name("add").donate(&[1]);
    assert_eq!(
        message(second.call((x.clone(), x.clone()))),
        "cannot call `add`:\
         \n  argument `1` f32[3] is donated, and the same array is also another argument or used by \
         another thread: pass a copy, or do not donate it"
    );
    assert_eq!(x.to_vec::<f32>()?, [1.0; 3]);
    Ok(())
}

#[test]
fn donated_arguments_that_no_result_can_take() {
    let step = jit(|mlp: Mlp, x: Tensor| Mlp {
        up: mlp.up + x.sum(..),
        down: mlp.down.transpose([1, 0]),
    });
    let mlp = Mlp {
        up: ones(&[2, 3]),
        down: ones(&[5, 4]),
    };
    assert_eq!(
        message(step.name("step").donate(&[0, 1]).call((mlp, ones(&[7])))),
        "cannot call `step`:\
         \n  argument `0.down` f32[5,4] is donated, and no result of the same type and sharding is there \
         to take its memory: return its new value, or do not donate it\
         \n  argument `1` f32[7] is donated, and no result of the same type and sharding is there to take \
         its memory: return its new value, or do not donate it"
    );
}

#[test]
fn arrays_of_two_clients() -> xla::Result<()> {
    let (one, two) = (Runtime::cpu(1)?, Runtime::cpu(1)?);
    let x = jit(|x: Tensor| x * 1.0).runtime(&one).call(ones(&[3]))?;
    let y = jit(|x: Tensor| x * 1.0).runtime(&two).call(ones(&[3]))?;
    let add = jit(|x: Tensor, y: Tensor| x + y).name("add").runtime(&one);
    assert_eq!(
        message(add.call((x.clone(), y.clone()))),
        "cannot call `add`:\
         \n  argument `1` f32[3] belongs to another client than the program: make it by programs of the \
         same runtime, or move the arguments with `Jit::place`"
    );
    let placed = add.place((x.clone(), y.clone()))?;
    assert_eq!(add.call(placed)?.to_vec::<f32>()?, [2.0; 3]);
    let moved = y.put(&one, x.sharding().unwrap())?;
    assert_eq!(add.call((x, moved))?.to_vec::<f32>()?, [2.0; 3]);
    Ok(())
}

#[test]
fn arrays_that_lie_elsewhere() -> xla::Result<()> {
    let layout = Layout::new(data8()).shard("a", "data");
    let whole = jit(|x: Tensor| x * 2.0).layout(&layout).call(ones(&[8]))?;
    #[shard]
    fn annotated(#[shard(a)] x: Tensor) -> Tensor {
        x * 2.0
    }
    assert_eq!(
        message(jit(annotated).layout(&layout).call(whole.clone())),
        "cannot call `annotated`:\
         \n  the argument f32[8] lies as P(_) on data=8, and the program wants it as P(\"data\") on data=8: \
         move it there with `Array::reshard`, all arguments with `Jit::place`, or make it by a program \
         whose result is annotated so"
    );
    let step = jit(annotated).layout(&layout);
    assert_eq!(
        step.call(step.place(whole.clone())?)?.to_vec::<f32>()?,
        [4.0; 8]
    );
    for (layout, mesh) in [
        (Layout::single(), "(one device)"),
        (Layout::new(data2_model4()), "data=2 x model=4"),
    ] {
        let plus = jit(|x: Tensor, _: Tensor| x + 1.0)
            .name("plus")
            .layout(&layout);
        assert_eq!(
            message(plus.call((whole.clone(), ones(&[1])))),
            format!(
                "cannot call `plus`:\
                 \n  argument `0` f32[8] lies as P(_) on data=8, and the program runs on {mesh}: move the \
                 arguments there with `Jit::place`, or a tree of arrays with `.place(&layout)`"
            )
        );
        let placed = plus.place((whole.clone(), ones(&[1])))?;
        assert_eq!(plus.call(placed)?.to_vec::<f32>()?, [3.0; 8]);
    }
    Ok(())
}

#[test]
fn more_memory_than_there_is() {
    let huge = jit(|| Tensor::zeros(DType::F32, [1 << 44]) + 1.0)
        .call(())
        .and_then(|x| x.wait());
    let text = message(huge);
    assert!(text.contains("RESOURCE_EXHAUSTED: Out of memory"), "{text}");
}

#[test]
fn errors_are_values_that_can_be_told_apart() {
    let shape = jit(|x: Tensor, y: Tensor| x + y).call((ones(&[3]), ones(&[4])));
    assert!(matches!(shape, Err(Error::Trace(_))));
    let layout = Layout::new(data8()).shard("a", "data");
    let outcome = jit(doubled).layout(&layout).call(ones(&[3]));
    assert!(matches!(outcome, Err(Error::Layout { faults }) if faults.len() == 1));
}

#[test]
fn what_the_compiler_refuses_names_the_program() {
    let unknown = |x: Tensor| custom_call("nowhere", "", [x], x.ty());
    assert_eq!(
        message(jit(unknown).name("unknown").call(ones(&[2]))),
        "`unknown` is refused by XLA's compiler\
         \n  in its words: NOT_FOUND: No FFI handler registered for nowhere on a platform Host (canonical host)"
    );
}

/// What a function without a layout returned goes where one with a layout wants it, whatever else it is called with.
#[test]
fn arrays_of_one_device_enter_a_layout() -> shardax::xla::Result<()> {
    let layout = Layout::new(data8()).shard("batch", "data");
    let split = |x: Tensor| x.shard(&[Dim::Logical("batch")]);
    let sum = jit(move |(x, y): (Tensor, Tensor)| split(x) * 2.0 + y).layout(&layout);
    let one = jit(|x: Tensor| x + 1.0).call(ones(&[8]))?;
    let on_mesh = jit(move |x: Tensor| split(x) + 2.0)
        .layout(&layout)
        .call(ones(&[8]))?;
    for (x, y, wanted) in [
        (one.clone(), on_mesh.clone(), 7.0),
        (on_mesh.clone(), one.clone(), 8.0),
        (one.clone(), ones(&[8]), 5.0),
        (one.clone(), one, 6.0),
    ] {
        assert_eq!(sum.call((x, y))?.to_vec::<f32>()?, [wanted; 8]);
    }
    Ok(())
}

/// An array that has no elements to print says why, and one on devices prints as one on the host.
#[test]
fn arrays_print_what_they_have() -> shardax::xla::Result<()> {
    let layout = Layout::new(data8()).shard("batch", "data");
    let split = jit(|x: Tensor| x.shard(&[Dim::Logical("batch")]) + 1.0).layout(&layout);
    let x = split.call(ones(&[8]))?;
    assert_eq!(x.to_string(), "[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]");
    let next = jit(|x: Tensor| x + 1.0).donate(&[0]);
    let x = next.call(ones(&[8]))?;
    let donated = x.clone();
    next.call(x)?;
    let text = donated.to_string();
    assert!(text.starts_with('<') && text.contains("donated"), "{text}");
    Ok(())
}
