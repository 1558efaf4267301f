//! Operations, their derivatives and random numbers against JAX.
//!
//! `goldens/ops.json` holds what JAX computes; `scripts/oracle_jax.py` writes it, and says how every
//! input is made of a hash. Many cases are compiled as one program, for compiling is what takes time.

use serde_json::Value;
use shardax::prelude::*;
use shardax::xla::Result;

/// What a case computes of its inputs.
type Operation = fn(&[Tensor]) -> Tensor;

/// Cases of operations that Shardax does not have yet.
const MISSING: [&str; 8] = [
    "argsort stable last ties",
    "cumsum axis 1",
    "reduce_prod axis 1",
    "sort last",
    "sort last ties",
    "top_k 3 indices ties",
    "top_k 3 values",
    "permutation 7",
];

fn operation(name: &str) -> Option<Operation> {
    let operation: Operation = match name {
        "neg" => |x| -x[0],
        "abs" => |x| x[0].abs(),
        "sign" => |x| x[0].sign(),
        "exp" => |x| x[0].exp(),
        "log" => |x| x[0].log(),
        "expm1" => |x| x[0].expm1(),
        "log1p" => |x| x[0].log1p(),
        "sqrt" => |x| x[0].sqrt(),
        "rsqrt" => |x| x[0].rsqrt(),
        "sin" => |x| x[0].sin(),
        "cos" => |x| x[0].cos(),
        "tanh" => |x| x[0].tanh(),
        "logistic" => |x| x[0].sigmoid(),
        "erf" => |x| x[0].erf(),
        "square" => |x| x[0].square(),
        "integer_pow 3" => |x| x[0].pow(3.0),
        "relu" => |x| x[0].relu(),
        "silu" => |x| x[0].silu(),
        "softplus" => |x| x[0].softplus(),
        "gelu tanh" => |x| x[0].gelu(),
        "gelu erf" => |x| x[0].gelu_exact(),
        "add broadcast [2,3]+[3]" => |x| x[0] + x[1],
        "mul broadcast [2,1]*[2,3]" => |x| x[0] * x[1],
        "div" => |x| x[0] / x[1],
        "pow" => |x| x[0].pow(x[1]),
        "maximum ties" => |x| x[0].maximum(x[1]),
        "minimum ties" => |x| x[0].minimum(x[1]),
        "select x>0" => |x| x[0].gt(0.0).select(x[0], x[1]),
        "clamp -1 1" => |x| x[0].clamp(-1.0, 1.0),
        "reduce_sum axis 1" => |x| x[0].sum(1),
        "reduce_mean axes 0,2" => |x| x[0].mean([0, 2]),
        "reduce_max axis 1" | "reduce_max axis 1 ties" => |x| x[0].max(1),
        "reduce_min axis 0 ties" => |x| x[0].min(0),
        "argmax axis 1 ties" => |x| x[0].argmax(1),
        "argmin axis 0 ties" => |x| x[0].argmin(0),
        "logsumexp last" => |x| x[0].logsumexp(-1),
        "softmax last" => |x| x[0].softmax(-1),
        "log_softmax last" => |x| x[0].log_softmax(-1),
        "variance last" => |x| x[0].var(-1),
        "layer_norm eps 1e-5" => |x| {
            let centred = x[0] - x[0].mean(-1).expand_dims(-1);
            centred * (x[0].var(-1).expand_dims(-1) + 1e-5).rsqrt() * x[1] + x[2]
        },
        "rms_norm eps 1e-6" => {
            |x| x[0] * (x[0].square().mean(-1).expand_dims(-1) + 1e-6).rsqrt() * x[1]
        }
        "cross_entropy mean" => |x| {
            let picked = x[0].take_along(x[1].expand_dims(-1), -1).squeeze(-1);
            (x[0].logsumexp(-1) - picked).mean(..)
        },
        "causal attention q,k,v [4,3]" => |x| {
            let scores = einsum("qk,sk->qs", [x[0], x[1]]) / 3f64.sqrt();
            let causal = Tensor::ones(DType::Bool, scores.shape()).tril(0);
            causal.select(scores, -1e30).softmax(-1).dot(x[2])
        },
        "matmul [2,3]@[3,4]" => |x| x[0].matmul(x[1]),
        "einsum bij,bjk->bik" => |x| einsum("bij,bjk->bik", x),
        "einsum bqhk,bshk->bhqs" => |x| einsum("bqhk,bshk->bhqs", x),
        "einsum btd,dchk->btchk" => |x| einsum("btd,dchk->btchk", x),
        "einsum bqhk,hkd->bqd" => |x| einsum("bqhk,hkd->bqd", x),
        "einsum btd,vd->btv" => |x| einsum("btd,vd->btv", x),
        "transpose 2,0,1" => |x| x[0].transpose([2, 0, 1]),
        "reshape [2,6]->[3,4]" => |x| x[0].reshape([3, 4]),
        "reverse axis 1" => |x| x[0].reverse([1]),
        "concatenate axis 1" => |x| concatenate(x, 1),
        "slice [1:3, 0:4:2]" => |x| x[0].slice(0, 1..3).slice(1, 0..4).step_by(1, 2),
        "pad low 1 high 2 interior 1 with 0.5" => |x| x[0].dilate(0, 1, 0.5).pad(0, 1, 2, 0.5),
        "dynamic_slice [i,j] sizes 2,2" => |x| window(x[0], x[1].index(0, 0), x[1].index(0, 1)),
        "dynamic_slice clamped start 9,-3 sizes 2,2" => |x| {
            window(
                x[0],
                Tensor::scalar(9, DType::I32),
                Tensor::scalar(-3, DType::I32),
            )
        },
        "dynamic_update_slice [i,j]" => |x| {
            let (i, j) = (x[2].index(0, 0), x[2].index(0, 1));
            let rows = x[0].dynamic_slice(0, i, 2).dynamic_update(1, j, x[1]);
            x[0].dynamic_update(0, i, rows)
        },
        "gather rows x[i]" => |x| x[0].take(x[1], 0),
        "take_along_axis last" => |x| x[0].take_along(x[1], -1),
        "scatter_add rows x.at[i].add(u)" => |x| x[0].scatter_add(x[2], x[1], 0),
        "one_hot 4" => |x| x[0].one_hot(4, DType::I32),
        _ => return None,
    };
    Some(operation)
}

fn window(x: Tensor, i: Tensor, j: Tensor) -> Tensor {
    x.dynamic_slice(0, i, 2).dynamic_slice(1, j, 2)
}

/// One case of the golden file.
struct Case {
    name: String,
    operation: Operation,
    inputs: Vec<Array>,
    /// With a cotangent of the result, if the case has a gradient.
    cotangent: Option<Array>,
    /// The value, then the gradients of the float inputs.
    expected: Vec<Vec<f64>>,
}

fn goldens() -> Value {
    let text = include_str!("goldens/ops.json");
    serde_json::from_str(text).expect("the golden file is JSON")
}

fn mix32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// Input `k` of a case, as the golden file describes it.
fn input(k: u32, described: &Value) -> Result<Array> {
    let shape: Vec<usize> = numbers(&described["shape"])
        .into_iter()
        .map(|n| n as usize)
        .collect();
    let (low, high) = (number(&described["low"]), number(&described["high"]));
    let hash = |i: u32| mix32(i.wrapping_add(1_000_003 * (k + 1)));
    let count = shape.iter().product::<usize>() as u32;
    if described["dtype"] == "i32" {
        let span = (high - low) as u32;
        let values: Vec<i32> = (0..count)
            .map(|i| low as i32 + (hash(i) % span) as i32)
            .collect();
        return Array::from_slice(&values, shape);
    }
    let unit = |i: u32| f64::from(hash(i) >> 8) * 2f64.powi(-24);
    let values = (0..count).map(|i| (low + unit(i) * (high - low)) as f32);
    let values: Vec<f32> = match described["ties"] == true {
        true => values.map(|v| (v * 2.0).round_ties_even() / 2.0).collect(),
        false => values.collect(),
    };
    Array::from_slice(&values, shape)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is not a list"))
}

fn case(golden: &Value, name: &str) -> Result<Option<Case>> {
    let Some(operation) = operation(name) else {
        assert!(
            MISSING.contains(&name),
            "no operation for the case `{name}`"
        );
        return Ok(None);
    };
    let described = list(&golden["inputs"]).iter().enumerate();
    let inputs = described
        .map(|(k, d)| input(k as u32, d))
        .collect::<Result<_>>()?;
    let mut expected = vec![numbers(&golden["value"])];
    let cotangent = match golden.get("vjp") {
        Some(gradients) => {
            expected.extend(list(gradients).iter().map(numbers));
            let like = serde_json::json!({"shape": golden["shape"], "low": -1, "high": 1});
            Some(input(99, &like)?)
        }
        None => None,
    };
    Ok(Some(Case {
        name: name.to_owned(),
        operation,
        inputs,
        cotangent,
        expected,
    }))
}

/// The value of a case, then the gradients of its float inputs.
fn compute(operation: Operation, inputs: &[Tensor], cotangent: Option<Tensor>) -> Vec<Tensor> {
    let Some(cotangent) = cotangent else {
        return vec![operation(inputs)];
    };
    let floats = inputs
        .iter()
        .copied()
        .filter(|x| x.dtype().is_float())
        .collect();
    let of_floats = |floats: Vec<Tensor>| {
        let mut next = floats.into_iter();
        let full: Vec<Tensor> = inputs
            .iter()
            .map(|&x| {
                if x.dtype().is_float() {
                    next.next().unwrap_or(x)
                } else {
                    x
                }
            })
            .collect();
        operation(&full)
    };
    let (value, pullback) = vjp(of_floats, floats);
    [vec![value], pullback(cotangent)].concat()
}

fn read(array: &Array) -> Result<Vec<f64>> {
    Ok(match array.dtype() {
        DType::F32 => array.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::I32 => array.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
        DType::U32 => array.to_vec::<u32>()?.into_iter().map(f64::from).collect(),
        DType::Bool => array
            .to_vec::<bool>()?
            .into_iter()
            .map(|b| f64::from(u8::from(b)))
            .collect(),
        other => panic!("no results of {other} here"),
    })
}

/// What differs, if anything does: floats by more than rounding, all else at all.
fn difference(what: &str, actual: &Array, expected: &[f64]) -> Result<Option<String>> {
    let values = read(actual)?;
    let tolerance = if actual.dtype().is_float() { 1e-5 } else { 0.0 };
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(0.1);
    let equal = values.len() == expected.len() && values.iter().zip(expected).all(near);
    Ok((!equal).then(|| format!("{what}\n  computed {values:?}\n  expected {expected:?}")))
}

#[test]
fn operations_and_gradients_equal_those_of_jax() -> Result<()> {
    let goldens = goldens();
    let first = input(0, &serde_json::json!({"shape": [3], "low": -2, "high": 2}))?;
    assert_eq!(
        difference("input", &first, &numbers(&goldens["input_check"]))?,
        None
    );
    let mut cases = Vec::new();
    for golden in list(&goldens["ops"]) {
        let name = golden["name"].as_str().unwrap_or_default();
        cases.extend(case(golden, name)?);
    }
    assert!(cases.len() > 60, "{} cases", cases.len());

    let parts: Vec<(Operation, usize, bool)> = cases
        .iter()
        .map(|c| (c.operation, c.inputs.len(), c.cotangent.is_some()))
        .collect();
    let all = jit(move |arguments: Vec<Tensor>| -> Vec<Vec<Tensor>> {
        let mut rest = arguments.as_slice();
        let mut take = |count| {
            let (taken, after) = rest.split_at(count);
            rest = after;
            taken
        };
        let compute = |&(operation, inputs, has_gradient): &(Operation, usize, bool)| {
            let inputs = take(inputs);
            compute(
                operation,
                inputs,
                take(usize::from(has_gradient)).first().copied(),
            )
        };
        parts.iter().map(compute).collect()
    });
    let arguments = cases
        .iter()
        .flat_map(|c| c.inputs.iter().chain(&c.cotangent))
        .cloned()
        .collect();
    let results = all.call(arguments)?;

    let mut differences = Vec::new();
    for (case, results) in cases.iter().zip(results) {
        assert_eq!(results.len(), case.expected.len(), "{}", case.name);
        for (i, (actual, expected)) in results.iter().zip(&case.expected).enumerate() {
            let what = match i {
                0 => case.name.clone(),
                i => format!("{}: gradient {}", case.name, i - 1),
            };
            differences.extend(difference(&what, actual, expected)?);
        }
    }
    assert!(
        differences.is_empty(),
        "{} differ\n{}",
        differences.len(),
        differences.join("\n")
    );
    Ok(())
}

/// Every draw of the golden file that Shardax has, by its name there.
fn draws(key: Key, logits: Tensor) -> Vec<(String, Tensor)> {
    let mut draws = Vec::new();
    let mut add = |name: &str, value: Tensor| draws.push((name.to_owned(), value));
    for count in [2, 3] {
        let keys: Vec<Tensor> = key.split(count).into_iter().map(|k| k.0).collect();
        add(&format!("split {count}"), concatenate(keys, 0));
    }
    for data in [0, 1, 7, u32::MAX] {
        add(&format!("fold_in {data}"), key.fold_in(data).0);
    }
    add("bits u32 [5]", key.bits([5]));
    add("bits u32 [2,3]", key.bits([2, 3]));
    add("bits u32 []", key.bits([]));
    add(
        "bits u16 [5]",
        key.bits([5]).cast(DType::U16).cast(DType::U32),
    );
    add(
        "bits u8 [5]",
        key.bits([5]).cast(DType::U8).cast(DType::U32),
    );
    add("uniform f32 [6]", key.uniform(DType::F32, [6]));
    add(
        "uniform f32 [2,3] -1..3",
        key.uniform_in(-1.0, 3.0, DType::F32, [2, 3]),
    );
    add("normal f32 [6]", key.normal(DType::F32, [6]));
    add(
        "truncated_normal f32 [6] -2..2",
        key.truncated_normal(-2.0, 2.0, DType::F32, [6]),
    );
    add("bernoulli 0.3 [8]", key.bernoulli(0.3, [8]));
    add("gumbel f32 [6]", key.gumbel(DType::F32, [6]));
    add("randint i32 [6] 0..10", key.randint(0, 10, [6]));
    add("randint i32 [6] -5..1000", key.randint(-5, 1000, [6]));
    add(
        "categorical logits f32 [4,5] input 0",
        key.categorical(logits, -1),
    );
    draws
}

#[test]
fn random_numbers_equal_those_of_jax() -> Result<()> {
    let goldens = goldens();
    let names = std::cell::RefCell::new(Vec::new());
    let program = jit(|key: Key, logits: Tensor| -> Vec<Tensor> {
        let (drawn, values) = draws(key, logits).into_iter().unzip();
        names.replace(drawn);
        values
    });
    let logits = input(
        0,
        &serde_json::json!({"shape": [4, 5], "low": -2, "high": 2}),
    )?;
    let mut differences = Vec::new();
    for golden in list(&goldens["random"]) {
        let seed = golden["seed"].as_u64().unwrap_or_default();
        let words = Key::seed_words(seed);
        assert_eq!(words.map(f64::from)[..], numbers(&golden["key"]));
        let key = Key(Array::from_slice(&words, [2])?);
        let values = program.call((key, logits.clone()))?;
        for (name, value) in names.borrow().iter().zip(&values) {
            let expected = match list(&golden[name.as_str()]) {
                keys @ [Value::Array(_), ..] => keys.iter().flat_map(numbers).collect(),
                plain => plain.iter().map(number).collect::<Vec<_>>(),
            };
            differences.extend(difference(
                &format!("seed {seed}: {name}"),
                value,
                &expected,
            )?);
        }
        let known = |name: &&String| {
            ["seed", "key"].contains(&name.as_str())
                || MISSING.contains(&name.as_str())
                || names.borrow().contains(name)
        };
        let all = golden.as_object().into_iter().flat_map(|o| o.keys());
        let unknown: Vec<&String> = all.filter(|name| !known(name)).collect();
        assert!(unknown.is_empty(), "no draws for {unknown:?}");
    }
    assert!(
        differences.is_empty(),
        "{} differ\n{}",
        differences.len(),
        differences.join("\n")
    );
    Ok(())
}

/// Each device draws its own shard: the same bits as one device, and nothing is communicated.
#[test]
fn random_bits_do_not_depend_on_the_layout() -> Result<()> {
    let draw = |key: Key| {
        let rows = &[Dim::Mesh(&["data"]), Dim::Mesh(&["model"])];
        (
            key.bits([4, 8]).shard(rows),
            key.normal(DType::F32, [4, 8]).shard(rows),
        )
    };
    let key = || Array::from_slice(&Key::seed_words(42), [2]).map(Key);
    let (bits, normal) = jit(draw).call(key()?)?;
    let mesh: Mesh = "data=2,model=4".parse()?;
    for partitioner in [shardax::Partitioner::Shardy, shardax::Partitioner::Gspmd] {
        let layout = Layout::new(mesh.clone()).partitioner(partitioner);
        let sharded = jit(draw).layout(&layout);
        let (bits_8, normal_8) = sharded.call(key()?)?;
        assert_eq!(bits_8.to_vec::<u32>()?, bits.to_vec::<u32>()?);
        assert_eq!(normal_8.to_vec::<f32>()?, normal.to_vec::<f32>()?);
        assert_eq!(bits_8.shards()[0].dims(), [2, 2]);
        let program = sharded.compile(Key(TensorType::new(DType::U32, [2])))?;
        assert!(
            program.collectives()?.collectives.is_empty(),
            "{}",
            program.collectives()?
        );
    }
    Ok(())
}
