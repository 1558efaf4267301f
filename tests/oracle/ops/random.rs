//! Random numbers. The first input is the key, two words of u32.

use shardax::prelude::*;

use crate::golden::Params;

pub(super) fn apply(op: &str, params: &Params, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let key = Key(x[0]);
    let shape = || params.sizes("shape");
    let to = || params.dtype("to");
    let float = |name: &str| params.float(name);
    let integer = |name: &str| params.int(name);
    Some(vec![match op {
        "seed" => x[0] ^ Key::from_seed(integer("seed") as u64).0,
        "split_array" => key.split_array(params.size("count")).0,
        "key_split" => words(key.split(params.size("count"))),
        "fold_in" => key.fold_in(integer("data") as u32).0,
        "fold_in_traced" => key.fold_in(x[1]).0,
        "bits" => key.bits(shape()),
        "uniform" => key.uniform(to(), shape()),
        "uniform_in" => key.uniform_in(float("low"), float("high"), to(), shape()),
        "normal" => key.normal(to(), shape()),
        "truncated_normal" => key.truncated_normal(float("low"), float("high"), to(), shape()),
        "bernoulli" => key.bernoulli(float("p"), shape()),
        "gumbel" => key.gumbel(to(), shape()),
        "exponential" => key.exponential(to(), shape()),
        "randint" => key.randint(integer("low") as i32, integer("high") as i32, shape()),
        "laplace" => key.laplace(to(), shape()),
        "gamma" => key.gamma(float("alpha"), to(), shape()),
        "loggamma" => key.loggamma(float("alpha"), to(), shape()),
        "beta" => key.beta(float("alpha"), float("beta"), to(), shape()),
        "dirichlet" => key.dirichlet(x[1].square() + 0.5, to(), shape()),
        "shuffle" => key.shuffle(x[1], params.axis("axis")),
        "choice" => key.choice(params.size("count"), shape(), params.flag("replace")),
        "choice_weighted" => key.choice_weighted(x[1].softmax(-1), shape(), params.flag("replace")),
        "randint_as" => key.randint_as(to(), integer("low"), integer("high"), shape()),
        "permutation" => key.permutation(params.size("size")),
        "categorical" => key.categorical(x[1], -1),
        _ => return None,
    }])
}

fn words(keys: Vec<Key>) -> Tensor {
    let words: Vec<Tensor> = keys.into_iter().map(|key| key.0.expand_dims(0)).collect();
    concatenate(words, 0)
}
