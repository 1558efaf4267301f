//! A program as Rust that a user could paste into a test.

use std::fmt::Write;

use shardax::DType;

use crate::operations::{HELPERS, named};
use crate::program::{
    AXES, Action, Block, Construct, Form, Input, Parameters, Program, Split, Statement,
};

/// The program as a test of the facade.
pub fn print(program: &Program) -> String {
    let mut out = Out::default();
    out.line("use shardax::prelude::*;");
    out.line("use shardax::*;");
    out.line("");
    out.line("#[test]");
    out.line("fn found() -> shardax::xla::Result<()> {");
    out.depth += 1;
    let inputs: Vec<usize> = (0..program.inputs.len()).collect();
    out.line("let f = |x: Vec<Tensor>| -> Vec<Tensor> {");
    out.depth += 1;
    let annotated: Vec<String> = program
        .inputs
        .iter()
        .enumerate()
        .map(|(i, input)| match &input.split {
            Some(splits) => format!("x[{i}].shard(&{})", dims(splits)),
            None => format!("x[{i}]"),
        })
        .collect();
    match (&program.form, inputs.is_empty()) {
        (Form::Values, false) => {
            out.next = program.inputs.len();
            let list: Vec<String> = inputs.iter().map(|i| format!("v{i}")).collect();
            for (name, of) in list.iter().zip(&annotated) {
                out.line(&format!("let {name} = {of};"));
            }
            out.body(&program.body, list);
        }
        (form, _) => {
            out.line(&format!("let x = vec![{}];", annotated.join(", ")));
            out.function("body", &program.body, &[]);
            out.form(form, &program.inputs);
        }
    }
    out.depth -= 1;
    out.line("};");
    let sizes = AXES.iter().zip(&program.place.mesh);
    let sizes: Vec<String> = sizes
        .map(|(name, size)| format!("(\"{name}\", {size})"))
        .collect();
    let partitioner = match program.place.gspmd {
        true => ".partitioner(Partitioner::Gspmd)",
        false => "",
    };
    out.line(&format!(
        "let layout = Layout::new(Mesh::new([{}])?){partitioner};",
        sizes.join(", ")
    ));
    out.line("let x = || -> shardax::xla::Result<Vec<Array>> {");
    let arrays: Vec<String> = program.inputs.iter().map(literal).collect();
    out.line(&format!("    Ok(vec![{}])", arrays.join(", ")));
    out.line("};");
    out.line("let one = jit(f).call(x()?)?;");
    out.line("let all = jit(f).layout(&layout).call(x()?)?;");
    out.line("for (one, all) in one.iter().zip(&all) {");
    out.line("    println!(\"{:?}\\n{:?}\", one.to_bytes()?, all.to_bytes()?);");
    out.line("}");
    out.line("Ok(())");
    out.depth -= 1;
    out.line("}");
    if out.text.contains("weighed(") {
        out.text.push_str(WEIGHED);
    }
    let helpers = ["regular(", "positive(", "LOWER"];
    if helpers.iter().any(|name| out.text.contains(name)) {
        out.text.push_str(HELPERS);
    }
    out.text
}

const WEIGHED: &str = r#"
/// A number that depends on every floating-point element, each in another way.
fn weighed(results: &[Tensor]) -> Tensor {
    let floats = results.iter().filter(|y| y.dtype().is_float());
    floats.fold(Tensor::scalar(0, DType::F64), |sum, y| {
        let y = y.cast(DType::F64).flatten();
        let weights = (Tensor::arange(DType::F64, y.size(0)) * 0.7).sin() + 1.2;
        sum + (y * weights).sum(..)
    })
}
"#;

#[derive(Default)]
struct Out {
    text: String,
    depth: usize,
    /// The number of the next value.
    next: usize,
    /// The number of the next function.
    functions: usize,
}

impl Out {
    fn line(&mut self, line: &str) {
        let indent = 4 * self.depth;
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{:indent$}{line}", "");
    }

    /// The statements and the results of a function whose arguments have these names.
    fn body(&mut self, block: &Block, names: Vec<String>) {
        let mut names = names;
        for statement in &block.statements {
            let own: Vec<String> = match statement.types.len() {
                0 => vec![format!("v{}", self.next)],
                count => (self.next..self.next + count)
                    .map(|n| format!("v{n}"))
                    .collect(),
            };
            self.next += own.len();
            let operands: Vec<String> = statement
                .operands
                .iter()
                .map(|&o| names[o].clone())
                .collect();
            self.statement(statement, &operands, &own);
            names.extend(own);
        }
        let results: Vec<&str> = block.results.iter().map(|&r| names[r].as_str()).collect();
        self.line(&format!("vec![{}]", results.join(", ")));
    }

    fn statement(&mut self, statement: &Statement, x: &[String], own: &[String]) {
        let types: Vec<String> = statement.types.iter().map(typed).collect();
        let comment = types.join(", ");
        match &statement.action {
            Action::Call { name, parameters } => {
                let source = named(name).map_or(name.as_str(), |operation| operation.source);
                let text = filled(source, x, parameters);
                self.line(&format!("let {} = {text}; // {comment}", own[0]));
            }
            Action::Annotate(splits) => {
                let dims = dims(splits);
                self.line(&format!("let {} = {}.shard(&{dims});", own[0], x[0]));
            }
            Action::Within {
                construct,
                arguments,
                blocks,
            } => {
                let (given, captured) = x.split_at(*arguments);
                let names: Vec<String> = blocks
                    .iter()
                    .map(|block| {
                        let name = format!("f{}", self.functions);
                        self.functions += 1;
                        self.function(&name, block, captured);
                        name
                    })
                    .collect();
                let call = construct_text(construct, &names, given);
                let results = format!("r{}", own[0]);
                self.line(&format!("let {results} = {call}; // {comment}"));
                for (i, name) in own.iter().enumerate() {
                    self.line(&format!("let {name} = {results}[{i}];"));
                }
            }
        }
    }

    /// A closure of a list of arguments that captures others.
    fn function(&mut self, name: &str, block: &Block, captured: &[String]) {
        self.line(&format!("let {name} = |x: Vec<Tensor>| -> Vec<Tensor> {{"));
        self.depth += 1;
        let given = block.parameters.len() - captured.len();
        let own: Vec<String> = (self.next..self.next + given)
            .map(|n| format!("v{n}"))
            .collect();
        self.next += given;
        for (i, (name, ty)) in own.iter().zip(&block.parameters).enumerate() {
            self.line(&format!("let {name} = x[{i}]; // {}", typed(ty)));
        }
        self.body(block, [&own, captured].concat());
        self.depth -= 1;
        self.line("};");
    }

    fn form(&mut self, form: &Form, inputs: &[Input]) {
        let is_float = |input: &Input| input.ty.dtype.is_float();
        let numbers: Vec<usize> = (0..inputs.len())
            .filter(|&i| is_float(&inputs[i]))
            .collect();
        let floats: Vec<String> = numbers.iter().map(|i| format!("x[{i}]")).collect();
        let floats = format!("vec![{}]", floats.join(", "));
        let all: Vec<String> = (0..inputs.len())
            .map(|i| match numbers.iter().position(|&n| n == i) {
                Some(at) => format!("y[{at}]"),
                None => format!("x[{i}]"),
            })
            .collect();
        let joined = format!("body(vec![{}])", all.join(", "));
        match form {
            Form::Values => self.line("body(x)"),
            Form::Gradient => {
                self.line("let loss = |y: Vec<Tensor>| {");
                self.line(&format!("    let results = {joined};"));
                self.line("    (weighed(&results), results)");
                self.line("};");
                self.line(&format!(
                    "let ((_, mut results), gradients) = value_and_grad(loss)({floats});"
                ));
                self.line("results.extend(gradients);");
                self.line("results");
            }
            Form::Forward => {
                self.line(&format!("let floats = {floats};"));
                self.line("let directions = floats.iter().map(|x| {");
                self.line("    let count = x.shape().iter().product();");
                self.line("    let along = (Tensor::arange(DType::F64, count) * 0.9).cos() + 0.3;");
                self.line("    along.reshape(x.shape()).cast(x.dtype())");
                self.line("});");
                self.line("let directions = directions.collect();");
                self.line(&format!("let along = |y: Vec<Tensor>| {joined};"));
                self.line("let (mut results, tangents) = jvp(along, floats, directions);");
                self.line("let real = tangents.into_iter().zip(results.clone());");
                self.line(
                    "results.extend(real.filter(|(_, y)| y.dtype().is_float()).map(|(t, _)| t));",
                );
                self.line("results");
            }
            Form::Second => {
                self.line(&format!("let loss = |y: Vec<Tensor>| weighed(&{joined});"));
                self.line(&format!(
                    "grad(|y: Vec<Tensor>| weighed(&grad(loss)(y)))({floats})"
                ));
            }
            Form::Batch { mapped, .. } => {
                let axes = mapped.iter().map(|m| m.then_some(0));
                let axes: Vec<Option<isize>> = axes.collect();
                self.line(&format!("vmap_axes(body, {axes:?}, 0)(x)"));
            }
        }
    }
}

fn construct_text(construct: &Construct, f: &[String], given: &[String]) -> String {
    let all = format!("vec![{}]", given.join(", "));
    let first = &f[0];
    match construct {
        Construct::Remat => format!("remat({first})({all})"),
        Construct::Scan {
            carries, reverse, ..
        } => {
            let (start, xs) = given.split_at(*carries);
            let name = if *reverse { "scan_reverse" } else { "scan" };
            format!(
                "{{ let (last, ys) = {name}(vec![{}], vec![{}], |h: Vec<Tensor>, x: Vec<Tensor>| {{ \
                 let mut next = {first}([h, x].concat()); let ys = next.split_off({carries}); (next, ys) }}); \
                 [last, ys].concat() }}",
                start.join(", "),
                xs.join(", ")
            )
        }
        Construct::Repeat { times } => {
            format!("fori_loop(0, {times}, {all}, |_, h: Vec<Tensor>| {first}(h))")
        }
        Construct::While { times } => format!(
            "while_loop((Tensor::scalar(0, DType::I32), {all}), |(i, h): (Tensor, Vec<Tensor>)| \
             i.lt({times}) & h[0].cast(DType::F32).abs().sum(..).lt(1000.0), \
             |(i, h): (Tensor, Vec<Tensor>)| (i + 1, {first}(h))).1"
        ),
        Construct::Branch => format!(
            "cond({}.cast(DType::F32).sum(..).gt(0.1), {all}, {first}, {})",
            given[0], f[1]
        ),
        Construct::Switch => {
            let boxed = f
                .iter()
                .map(|f| format!("&{f} as &dyn Fn(Vec<Tensor>) -> Vec<Tensor>"));
            let boxed: Vec<String> = boxed.collect();
            let of = &given[0];
            format!(
                "switch({of}.cast(DType::I32).sum(..), {all}, [{}])",
                boxed.join(", ")
            )
        }
        Construct::Batch { axes } => format!("vmap_axes({first}, {axes:?}, 0)({all})"),
        Construct::Backward => format!(
            "custom_vjp({first}, |x: Vec<Tensor>| ({first}(x.clone()), x), \
             |x: Vec<Tensor>, ct: Vec<Tensor>| vjp({first}, x).1(ct))({all})"
        ),
        Construct::Forward => format!(
            "custom_jvp({first}, |x: Vec<Tensor>, t: Vec<Tensor>| jvp({first}, x, t))({all})"
        ),
        Construct::Region {
            axes,
            inputs,
            outputs,
        } => {
            let axes: Vec<&str> = axes.iter().map(|&axis| AXES[axis]).collect();
            let specs = |all: &[Vec<Split>]| {
                let all: Vec<String> = all.iter().map(|splits| spec(splits)).collect();
                format!("Leaves(vec![{}])", all.join(", "))
            };
            let (inputs, outputs) = (specs(inputs), specs(outputs));
            format!("manual({axes:?}, {inputs}, {outputs}, {first})({all})")
        }
        Construct::Gradient => format!("grad(|x: Vec<Tensor>| weighed(&{first}(x)))({all})"),
    }
}

/// The Rust of an operation with its operands and parameters in place.
fn filled(source: &str, x: &[String], p: &Parameters) -> String {
    let mut text = source.split_whitespace().collect::<Vec<_>>().join(" ");
    for (i, name) in x.iter().enumerate() {
        text = text.replace(&format!("x[{i}]"), name);
    }
    let sizes = |list: &[usize]| match list {
        [] => "[0usize; 0]".to_owned(),
        _ => format!("{list:?}"),
    };
    let axes = match p.axes.is_empty() {
        true => "[0isize; 0]".to_owned(),
        false => format!("{:?}", p.axes),
    };
    // Longer names first: one may begin with another.
    let fields = [
        ("p.permutation", sizes(&p.permutation)),
        ("p.axes", axes),
        ("p.axis", p.axis.to_string()),
        ("p.other", p.other.to_string()),
        ("p.shape", sizes(&p.shape)),
        ("p.wide", sizes(&p.wide)),
        ("p.index", p.index.to_string()),
        ("p.start", p.start.to_string()),
        ("p.stop", p.stop.to_string()),
        ("p.step", p.step.to_string()),
        ("p.count", p.count.to_string()),
        ("p.low", p.low.to_string()),
        ("p.high", p.high.to_string()),
        ("p.number.abs()", format!("{:?}", p.number.abs())),
        ("p.number", format!("{:?}", p.number)),
        ("p.dtype", format!("DType::{:?}", p.dtype)),
        ("p.flag", p.flag.to_string()),
        ("p.over.clone()", format!("{:?}", p.over)),
    ];
    for (name, value) in fields {
        text = text.replace(name, &value);
    }
    text
}

fn dims(splits: &[Split]) -> String {
    let each = splits.iter().map(|split| match split {
        Split::Whole => "Dim::Unsharded".to_owned(),
        Split::Open => "Dim::Open".to_owned(),
        Split::Axes(axes) => {
            let names: Vec<&str> = axes.iter().map(|&a| AXES[a]).collect();
            format!("Dim::Mesh(&{names:?})")
        }
    });
    format!("[{}]", each.collect::<Vec<_>>().join(", "))
}

fn spec(splits: &[Split]) -> String {
    let each = splits.iter().map(|split| match split {
        Split::Whole | Split::Open => "vec![]".to_owned(),
        Split::Axes(axes) => {
            let names: Vec<&str> = axes.iter().map(|&a| AXES[a]).collect();
            format!("vec!{names:?}")
        }
    });
    let each: Vec<String> = each.collect();
    format!(
        "PartitionSpec::from(Vec::<Vec<&str>>::from([{}]))",
        each.join(", ")
    )
}

fn typed(ty: &crate::program::Type) -> String {
    format!("{}{:?}", ty.dtype, ty.shape)
}

/// An input as an array on the host.
fn literal(input: &Input) -> String {
    let dtype = input.ty.dtype;
    let shape = format!("{:?}", input.ty.shape);
    let of = |name: &str| -> Vec<String> {
        let number = |v: &f64| match () {
            () if v.is_nan() => format!("{name}::NAN"),
            () if v.is_infinite() && *v > 0.0 => format!("{name}::INFINITY"),
            () if v.is_infinite() => format!("{name}::NEG_INFINITY"),
            () if dtype == DType::F64 => format!("{v:?}"),
            () => format!("{:?}", *v as f32),
        };
        input.values.iter().map(number).collect()
    };
    let whole = || -> Vec<String> { input.values.iter().map(|v| format!("{v}")).collect() };
    let (name, list) = match dtype {
        DType::Bool => {
            let each = input.values.iter().map(|v| (*v != 0.0).to_string());
            (
                "bool".to_owned(),
                format!("&[{}]", each.collect::<Vec<_>>().join(", ")),
            )
        }
        DType::F64 => ("f64".to_owned(), format!("&[{}]", of("f64").join(", "))),
        DType::F32 => ("f32".to_owned(), format!("&[{}]", of("f32").join(", "))),
        DType::BF16 | DType::F16 => {
            let name = format!("half::{}", dtype.name());
            let list = format!("&[{}].map({name}::from_f32)", of("f32").join(", "));
            (name, list)
        }
        other => (
            other.name().to_owned(),
            format!("&[{}]", whole().join(", ")),
        ),
    };
    format!("Array::from_slice::<{name}>({list}, {shape})?")
}
