//! All ways to make a function a little smaller.

use crate::program::{Action, Block, Construct, Parameters, Statement, Type};

/// What a statement is replaced by.
enum Instead<'a> {
    /// Earlier values in place of its results.
    Values(Vec<usize>),
    /// The statements of a function within it.
    Body(&'a Block),
}

/// Smaller functions of the same arguments.
pub(crate) fn smaller(block: &Block) -> Vec<Block> {
    let mut all = Vec::new();
    if block.results.len() > 1 {
        for &result in &block.results {
            let results = vec![result];
            all.push(without_unused(Block {
                results,
                ..block.clone()
            }));
        }
    }
    all.extend(with_same_results(block));
    all
}

/// Smaller functions of the same arguments and results.
fn with_same_results(block: &Block) -> Vec<Block> {
    let mut all = Vec::new();
    let types = types(block);
    let mut first = types.len();
    for (at, statement) in block.statements.iter().enumerate().rev() {
        first -= statement.types.len();
        if let Some(values) = stand_ins(&types[..first], &statement.types) {
            all.push(replaced(block, at, &Instead::Values(values)));
        }
        if let Action::Within {
            construct, blocks, ..
        } = &statement.action
            && can_be_inlined(construct)
        {
            let alike = |inner: &&Block| results_of(inner) == statement.types;
            let inlined = blocks.iter().filter(alike);
            all.extend(inlined.map(|inner| replaced(block, at, &Instead::Body(inner))));
        }
        if let Some(made) = made(statement) {
            let mut block = block.clone();
            block.statements[at] = made;
            all.push(block);
        }
        if let Action::Annotate(_) = statement.action {
            let operand = statement.operands[0];
            all.push(replaced(block, at, &Instead::Values(vec![operand])));
        }
        for smaller in inside(statement) {
            let mut block = block.clone();
            block.statements[at] = smaller;
            all.push(block);
        }
    }
    all.into_iter().map(without_unused).collect()
}

/// A statement with smaller functions within.
fn inside(statement: &Statement) -> Vec<Statement> {
    let Action::Within {
        construct,
        arguments,
        blocks,
    } = &statement.action
    else {
        return Vec::new();
    };
    let with = |blocks: Vec<Block>| Statement {
        action: Action::Within {
            construct: construct.clone(),
            arguments: *arguments,
            blocks,
        },
        ..statement.clone()
    };
    let mut all = Vec::new();
    if *construct == Construct::Switch && blocks.len() > 1 {
        all.extend(blocks.iter().map(|block| with(vec![block.clone()])));
    }
    for (i, block) in blocks.iter().enumerate() {
        for smaller in with_same_results(block) {
            let mut blocks = blocks.clone();
            blocks[i] = smaller;
            all.push(with(blocks));
        }
    }
    for captured in *arguments..statement.operands.len() {
        if let Some(blocks) = blocks
            .iter()
            .map(|b| without_parameter(b, captured))
            .collect()
        {
            let mut smaller = with(blocks);
            smaller.operands.remove(captured);
            all.push(smaller);
        }
    }
    all
}

/// Whether the function within may stand in the place of the construct.
fn can_be_inlined(construct: &Construct) -> bool {
    match construct {
        Construct::Remat
        | Construct::Repeat { .. }
        | Construct::While { .. }
        | Construct::Branch
        | Construct::Switch
        | Construct::Backward
        | Construct::Forward => true,
        Construct::Scan { .. }
        | Construct::Batch { .. }
        | Construct::Gradient
        | Construct::Region { .. } => false,
    }
}

/// A value that depends on nothing in place of a statement's one result.
fn made(statement: &Statement) -> Option<Statement> {
    let [ty] = &statement.types[..] else {
        return None;
    };
    if statement.operands.is_empty() || ty.dtype.is_complex() {
        return None;
    }
    Some(Statement {
        action: Action::Call {
            name: "make".to_owned(),
            parameters: make_parameters(ty),
        },
        operands: Vec::new(),
        types: statement.types.clone(),
    })
}

fn make_parameters(ty: &Type) -> Parameters {
    Parameters {
        axis: 0,
        other: 0,
        axes: Vec::new(),
        permutation: Vec::new(),
        shape: ty.shape.clone(),
        wide: Vec::new(),
        index: 0,
        start: 0,
        stop: 0,
        count: 1,
        step: 1,
        low: 0,
        high: 0,
        number: 0.0,
        dtype: ty.dtype,
        flag: false,
        over: Vec::new(),
    }
}

/// The types of all values of a function.
pub(crate) fn types(block: &Block) -> Vec<Type> {
    let computed = block.statements.iter().flat_map(|s| &s.types);
    block.parameters.iter().chain(computed).cloned().collect()
}

/// The types of a function's results.
pub(crate) fn results_of(block: &Block) -> Vec<Type> {
    let types = types(block);
    block.results.iter().map(|&r| types[r].clone()).collect()
}

/// For each wanted type a value of it.
fn stand_ins(types: &[Type], wanted: &[Type]) -> Option<Vec<usize>> {
    let find = |ty: &Type| types.iter().position(|known| known == ty);
    wanted.iter().map(find).collect()
}

/// The function with something else in place of statement `at`.
fn replaced(block: &Block, at: usize, with: &Instead<'_>) -> Block {
    let mut values: Vec<usize> = (0..block.parameters.len()).collect();
    let mut next = values.len();
    let mut statements = Vec::new();
    for (i, statement) in block.statements.iter().enumerate() {
        if i != at {
            statements.push(renamed(statement, &values));
            values.extend(next..next + statement.types.len());
            next += statement.types.len();
            continue;
        }
        match with {
            Instead::Values(instead) => {
                let instead: Vec<usize> = instead.iter().map(|&v| values[v]).collect();
                values.extend(instead);
            }
            Instead::Body(inner) => {
                let mut own: Vec<usize> = statement.operands.iter().map(|&o| values[o]).collect();
                for statement in &inner.statements {
                    statements.push(renamed(statement, &own));
                    own.extend(next..next + statement.types.len());
                    next += statement.types.len();
                }
                values.extend(inner.results.iter().map(|&r| own[r]));
            }
        }
    }
    Block {
        parameters: block.parameters.clone(),
        statements,
        results: block.results.iter().map(|&r| values[r]).collect(),
    }
}

fn renamed(statement: &Statement, values: &[usize]) -> Statement {
    Statement {
        operands: statement.operands.iter().map(|&o| values[o]).collect(),
        ..statement.clone()
    }
}

/// The function without statements that nobody reads.
pub(crate) fn without_unused(mut block: Block) -> Block {
    loop {
        let mut first = block.parameters.len();
        let mut unused = None;
        for (at, statement) in block.statements.iter().enumerate() {
            let own = first..first + statement.types.len();
            let later = block.statements.iter().flat_map(|s| &s.operands);
            let read = later.chain(&block.results).any(|value| own.contains(value));
            if !read && !statement.types.is_empty() {
                unused = Some(at);
            }
            first = own.end;
        }
        let Some(at) = unused else { return block };
        // Nobody reads them: any value will do.
        let nobody = vec![0; block.statements[at].types.len()];
        block = match block.parameters.is_empty() && at == 0 {
            true => return block,
            false => replaced(&block, at, &Instead::Values(nobody)),
        };
    }
}

/// The function without a parameter that it does not read.
pub(crate) fn without_parameter(block: &Block, parameter: usize) -> Option<Block> {
    let read = block.statements.iter().flat_map(|s| &s.operands);
    if read.chain(&block.results).any(|&value| value == parameter) {
        return None;
    }
    let moved = |&value: &usize| value - usize::from(value > parameter);
    let mut block = block.clone();
    block.parameters.remove(parameter);
    for statement in &mut block.statements {
        statement.operands = statement.operands.iter().map(moved).collect();
    }
    block.results = block.results.iter().map(moved).collect();
    Some(block)
}

/// The function with dimensions of another size, where they are `from`; its types have to be found anew.
pub(crate) fn resized(block: &Block, from: usize, to: usize) -> Block {
    let size = |size: &usize| if *size == from { to } else { *size };
    let ty = |ty: &Type| Type::new(ty.dtype, ty.shape.iter().map(size).collect::<Vec<_>>());
    let mut block = block.clone();
    block.parameters = block.parameters.iter().map(ty).collect();
    for statement in &mut block.statements {
        statement.types = statement.types.iter().map(ty).collect();
        match &mut statement.action {
            Action::Call { parameters, .. } => {
                parameters.shape = parameters.shape.iter().map(size).collect();
                parameters.wide = parameters.wide.iter().map(size).collect();
                parameters.stop = parameters.stop.min(to.max(parameters.start));
            }
            Action::Annotate(_) => {}
            Action::Within {
                construct, blocks, ..
            } => {
                if let Construct::Scan { length, .. } = construct {
                    *length = size(length);
                }
                *blocks = blocks
                    .iter()
                    .map(|block| resized(block, from, to))
                    .collect();
            }
        }
    }
    block
}
