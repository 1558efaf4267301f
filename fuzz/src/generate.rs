//! How a program is made up.
//!
//! A statement is proposed, and traced: what Shardax refuses with an error is not taken, and what it
//! accepts has the types that its own rules say. The interpreter computes it at once, so that numbers
//! stay of a size at which something can be seen.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::{Tensor, TensorType, trace};
use shardax_interpreter::{Array, interpret};

use crate::constructs;
use crate::dice::Dice;
use crate::operations::{Class, Operation, Want, all, collectives, size};
use crate::program::{
    AXES, Action, Also, Block, Form, Input, Parameters, Place, Program, Split, Statement, Type,
};
use crate::region::Region;
use crate::run;
use crate::values::{Mood, array, values};

/// Elements of the largest value.
const MOST_ELEMENTS: usize = 600;

/// The program of a seed.
pub fn generate(seed: u64) -> Program {
    let mut dice = Dice::new(seed);
    let place = place(&mut dice);
    dice.favored = favored(&mut dice, &place);
    let mood = Mood::pick(&mut dice);
    let mut function = Function::new(&mut dice, &place, mood);
    for _ in 0..1 + function.dice.roll(2) {
        let class = if function.dice.once_in(5) {
            Class::Any
        } else {
            Class::Float
        };
        let ty = function.random_type(class, 1);
        function.input(ty);
    }
    let length = 1 + function.dice.roll(8);
    function.grow(length, 2);
    let results = function.results();
    let (block, inputs) = (
        function.block(results),
        std::mem::take(&mut function.inputs),
    );
    let mut program = Program {
        inputs,
        body: block,
        form: Form::Values,
        place,
        also: match dice.roll(16) {
            0 | 1 => Also::Donate,
            2 => Also::Cache,
            _ => Also::Nothing,
        },
    };
    annotate(&mut dice, &mut program);
    shape_form(&mut dice, &mut program, mood);
    program
}

fn place(dice: &mut Dice) -> Place {
    const MESHES: [&[usize]; 16] = [
        &[2],
        &[3],
        &[4],
        &[5],
        &[6],
        &[7],
        &[8],
        &[2, 2],
        &[2, 3],
        &[3, 2],
        &[2, 4],
        &[4, 2],
        &[1, 4],
        &[2, 2, 2],
        &[1, 3, 2],
        &[8],
    ];
    Place {
        mesh: dice.one_of(&MESHES).to_vec(),
        gspmd: dice.once_in(2),
    }
}

/// Sizes that the mesh divides, and others.
fn favored(dice: &mut Dice, place: &Place) -> Vec<usize> {
    let devices = place.mesh.iter().product::<usize>();
    let mut sizes = vec![devices, *dice.one_of(&place.mesh)];
    sizes.push(sizes[1] * (1 + dice.roll(3)));
    if dice.once_in(2) {
        sizes.push(1 + dice.roll(8));
    }
    sizes.retain(|&size| size <= 12);
    sizes.push(sizes.first().copied().unwrap_or(4));
    sizes
}

/// A function that is being written.
pub struct Function<'a> {
    /// What chooses.
    pub dice: &'a mut Dice,
    /// Where it will run.
    pub place: &'a Place,
    mood: Mood,
    parameters: Vec<Type>,
    /// The inputs of the program; a function within has none.
    inputs: Vec<Input>,
    /// The types of all values.
    pub types: Vec<Type>,
    /// The values, as far as the interpreter has them.
    pub known: Vec<Option<Array>>,
    statements: Vec<Statement>,
    /// Whether it takes no more arguments.
    closed: bool,
    /// The manual region that it is the function of.
    region: Option<Region>,
    /// The mesh axes over which values of a region may differ.
    pub varying: Vec<Vec<usize>>,
    /// Whether tracing the last statement has panicked.
    broken: bool,
}

impl<'a> Function<'a> {
    fn new(dice: &'a mut Dice, place: &'a Place, mood: Mood) -> Self {
        Function {
            dice,
            place,
            mood,
            parameters: Vec::new(),
            inputs: Vec::new(),
            types: Vec::new(),
            known: Vec::new(),
            statements: Vec::new(),
            closed: false,
            region: None,
            varying: Vec::new(),
            broken: false,
        }
    }

    /// A function of given arguments inside of this one.
    pub fn inner(&mut self, types: Vec<Type>, known: Vec<Option<Array>>) -> Function<'_> {
        Function {
            parameters: types.clone(),
            types,
            known,
            closed: true,
            ..Function::new(self.dice, self.place, self.mood)
        }
    }

    /// The function of a manual region of values of these types.
    pub fn in_region(&mut self, region: Region) -> Option<Function<'_>> {
        let mut inner = self.inner(Vec::new(), Vec::new());
        let values = region.values(&[], inner.place)?;
        inner.parameters = values.iter().map(|(ty, _)| ty.clone()).collect();
        inner.add_values(values);
        inner.region = Some(region);
        Some(inner)
    }

    fn add_values(&mut self, values: Vec<(Type, Vec<usize>)>) {
        for (ty, varying) in values {
            self.types.push(ty);
            self.varying.push(varying);
            self.known.push(None);
        }
    }

    /// The function, with these values as results.
    pub fn block(&mut self, results: Vec<usize>) -> Block {
        Block {
            parameters: self.parameters.clone(),
            statements: std::mem::take(&mut self.statements),
            results,
        }
    }

    fn random_type(&mut self, class: Class, rank: usize) -> Type {
        let rank = rank.max(self.dice.roll(4));
        let mut shape: Vec<usize> = (0..rank).map(|_| size(self.dice)).collect();
        while shape.iter().product::<usize>() > MOST_ELEMENTS / 4 {
            shape.pop();
            shape.insert(0, 1);
        }
        Type::new(class.pick(self.dice), shape)
    }

    /// A new argument.
    fn input(&mut self, ty: Type) -> usize {
        let values = values(self.dice, &ty, self.mood);
        let known = array(&ty, &values);
        self.inputs.push(Input {
            ty: ty.clone(),
            values,
            split: None,
        });
        // Arguments come before all other values.
        let at = self.parameters.len();
        self.parameters.push(ty.clone());
        self.types.insert(at, ty);
        self.known.insert(at, Some(known));
        for statement in &mut self.statements {
            for operand in &mut statement.operands {
                *operand += usize::from(*operand >= at);
            }
        }
        at
    }

    /// Appends about so many statements, functions within nested as deep as `depth`.
    pub fn grow(&mut self, length: usize, depth: usize) {
        let (mut taken, mut tries) = (0, 0);
        while taken < length && tries < 12 * length && !self.broken {
            tries += 1;
            let proposed = match self.dice.roll(10) {
                0 => self.annotation(),
                1 | 2 if depth > 0 => constructs::propose(self, depth - 1),
                _ => self.call(),
            };
            if let Some((action, operands)) = proposed {
                taken += usize::from(self.take(action, operands));
            }
        }
    }

    /// Some of the values: what was computed last, and perhaps more.
    pub fn results(&mut self) -> Vec<usize> {
        let first = self.parameters.len().min(self.types.len() - 1);
        let last = self.types.len() - 1;
        let mut results = vec![last];
        while results.len() < 3 && self.dice.once_in(2) {
            results.push(first + self.dice.roll(last - first + 1));
        }
        results
    }

    /// Appends a statement if Shardax takes it and its value can be seen.
    pub fn take(&mut self, action: Action, operands: Vec<usize>) -> bool {
        let mut statement = Statement {
            action,
            operands,
            types: Vec::new(),
        };
        if let Some(region) = &self.region {
            let all = [&self.statements[..], &[statement.clone()]].concat();
            let Some(values) = region.values(&all, self.place) else {
                return false;
            };
            let new = values[self.types.len()..].to_vec();
            statement.types = new.iter().map(|(ty, _)| ty.clone()).collect();
            if statement.types.iter().any(|ty| ty.count() > MOST_ELEMENTS) {
                return false;
            }
            self.add_values(new);
            self.statements.push(statement);
            return true;
        }
        let types = statement.operands.iter().map(|&o| &self.types[o]);
        let types: Vec<TensorType> = types.map(TensorType::from).collect();
        let f = |x: Vec<Tensor>| run::statement(&statement, &x);
        let layout = run::layout(self.place);
        let written = catch_unwind(AssertUnwindSafe(|| match layout {
            Ok(layout) => shardax::under(&layout, || trace(f, types)).ok(),
            Err(_) => None,
        }));
        let Ok(traced) = written else {
            // The check of the program will tell.
            self.broken = true;
            self.statements.push(statement);
            return true;
        };
        let Some(traced) = traced else { return false };
        let types = traced.output_types();
        if types.iter().any(|ty| ty.element_count() > MOST_ELEMENTS) {
            return false;
        }
        let known = statement.operands.iter().map(|&o| self.known[o].clone());
        let results = known.collect::<Option<Vec<Array>>>().and_then(|known| {
            catch_unwind(AssertUnwindSafe(|| interpret(&traced.graph, &known))).ok()
        });
        if self.mood != Mood::Special
            && let Some(results) = &results
            && !results.iter().all(is_seen)
            && !self.dice.once_in(20)
        {
            return false;
        }
        for (i, ty) in types.iter().enumerate() {
            self.types.push(ty.into());
            self.known
                .push(results.as_ref().map(|results| results[i].clone()));
        }
        statement.types = types.iter().map(Type::from).collect();
        self.statements.push(statement);
        true
    }

    /// An operation of the table.
    fn call(&mut self) -> Option<(Action, Vec<usize>)> {
        let operations: Vec<&Operation> = match self.region {
            Some(_) if !self.dice.once_in(3) => collectives().collect(),
            _ => all().collect(),
        };
        let operation = *self.dice.one_of(&operations);
        let mut operands: Vec<usize> = Vec::new();
        for want in operation.wants {
            let earlier = operands.iter().map(|&o| self.types[o].clone());
            let earlier: Vec<Type> = earlier.collect();
            let before = self.parameters.len();
            let found = self.find(*want, &earlier)?;
            // A new argument has moved the values behind it.
            let moved = self.parameters.len() - before;
            for operand in &mut operands {
                *operand += if *operand >= before { moved } else { 0 };
            }
            operands.push(found);
        }
        let ty = operands.first().map(|&o| self.types[o].clone());
        let ty = ty.unwrap_or_else(|| self.random_type(Class::Any, 0));
        let mut parameters = parameters(self.dice, &ty);
        if let Some(region) = &self.region {
            let mut axes = self.dice.shuffled(&region.axes);
            axes.truncate(1 + self.dice.roll(axes.len()));
            parameters.over = axes.iter().map(|&axis| AXES[axis].to_owned()).collect();
        }
        let name = operation.name.to_owned();
        Some((Action::Call { name, parameters }, operands))
    }

    /// A value that is wanted.
    fn find(&mut self, want: Want, earlier: &[Type]) -> Option<usize> {
        let fits: Box<dyn Fn(&Type) -> bool> = match want {
            Want::Any(class, rank) => Box::new(move |ty| class.has(ty.dtype) && ty.rank() >= rank),
            Want::Same(of) => Box::new(move |ty| *ty == earlier[of]),
            Want::Shape(of, class) => {
                Box::new(move |ty| class.has(ty.dtype) && ty.shape == earlier[of].shape)
            }
            Want::Fits(of) => Box::new(move |ty| {
                ty.dtype == earlier[of].dtype && broadcasts(&ty.shape, &earlier[of].shape)
            }),
            Want::Made(make) => {
                let wanted = make(self.dice, earlier)?;
                return self.of_type(wanted);
            }
        };
        let found: Vec<usize> = (0..self.types.len())
            .filter(|&v| fits(&self.types[v]))
            .collect();
        if !found.is_empty() && !self.dice.once_in(8) {
            // Later values more often, so that programs become deep.
            let at = self.dice.roll(found.len()).max(self.dice.roll(found.len()));
            return Some(found[at]);
        }
        let wanted = match want {
            Want::Any(class, rank) => self.random_type(class, rank),
            Want::Same(of) | Want::Fits(of) => earlier[of].clone(),
            Want::Shape(of, class) => Type::new(class.pick(self.dice), earlier[of].shape.clone()),
            Want::Made(_) => return None,
        };
        self.of_type(wanted)
    }

    /// A value of a type: one that is there, or a new one.
    pub fn of_type(&mut self, wanted: Type) -> Option<usize> {
        let found = (0..self.types.len())
            .rev()
            .find(|&v| self.types[v] == wanted);
        if let Some(found) = found
            && !self.dice.once_in(4)
        {
            return Some(found);
        }
        if wanted.dtype.is_complex() || wanted.count() > MOST_ELEMENTS {
            return None;
        }
        let narrow =
            wanted.dtype.bits() == 4 || wanted.dtype.is_float() && wanted.dtype.bits() == 8;
        if self.closed || narrow || self.inputs.len() >= 5 {
            return self.made(wanted);
        }
        Some(self.input(wanted))
    }

    /// A value of a type that depends on nothing.
    pub fn made(&mut self, wanted: Type) -> Option<usize> {
        let name = "make".to_owned();
        let mut parameters = parameters(self.dice, &wanted);
        (parameters.shape, parameters.dtype) = (wanted.shape, wanted.dtype);
        self.take(Action::Call { name, parameters }, vec![])
            .then(|| self.types.len() - 1)
    }

    fn annotation(&mut self) -> Option<(Action, Vec<usize>)> {
        let value = self.dice.roll(self.types.len());
        let splits = splits(self.dice, self.place, &self.types[value].shape)?;
        Some((Action::Annotate(splits), vec![value]))
    }
}

/// Whether an array has numbers of a usual size alone.
fn is_seen(array: &Array) -> bool {
    !array.is_float() || array.floats().into_iter().all(|v| v.abs() < 1e5)
}

fn broadcasts(a: &[usize], b: &[usize]) -> bool {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.into_iter().all(|(a, b)| a == b || *a == 1 || *b == 1)
}

/// A split of each dimension, most often one that divides it; `None` of a scalar.
fn splits(dice: &mut Dice, place: &Place, shape: &[usize]) -> Option<Vec<Split>> {
    if shape.is_empty() {
        return None;
    }
    let axes: Vec<usize> = (0..place.mesh.len()).collect();
    Some(splits_over(dice, place, &axes, shape))
}

/// A split of each dimension over some of the axes.
pub fn splits_over(dice: &mut Dice, place: &Place, axes: &[usize], shape: &[usize]) -> Vec<Split> {
    let mut free = dice.shuffled(axes);
    let mut split = |&size: &usize| {
        let mut own = Vec::new();
        let mut parts = 1;
        while let Some(&axis) = free.last() {
            let fits = size % (parts * place.mesh[axis]) == 0;
            if !fits && !dice.once_in(30) || dice.once_in(3) {
                break;
            }
            parts *= place.mesh[axis];
            own.push(axis);
            free.pop();
        }
        match own.is_empty() {
            true if dice.once_in(4) => Split::Open,
            true => Split::Whole,
            false => Split::Axes(own),
        }
    };
    shape.iter().map(&mut split).collect()
}

fn annotate(dice: &mut Dice, program: &mut Program) {
    for input in &mut program.inputs {
        if !dice.once_in(5) {
            input.split = splits(dice, &program.place, &input.ty.shape);
        }
    }
}

/// Chooses what is computed of the body, if Shardax can.
fn shape_form(dice: &mut Dice, program: &mut Program, mood: Mood) {
    let plain = program.clone();
    program.form = match dice.roll(20) {
        0..7 => Form::Values,
        7..13 => Form::Gradient,
        13 | 14 => Form::Forward,
        15 | 16 => Form::Second,
        _ => {
            let size = *dice.one_of(&[2, 3, program.place.mesh[0]]);
            let mut mapped: Vec<bool> = program.inputs.iter().map(|_| !dice.once_in(3)).collect();
            mapped[0] = true;
            for (input, _) in program.inputs.iter_mut().zip(&mapped).filter(|(_, m)| **m) {
                let mut more = Type::new(input.ty.dtype, input.ty.shape.clone());
                more.shape.insert(0, size - 1);
                input.values.extend(values(dice, &more, mood));
                input.ty.shape.insert(0, size);
                input.split = splits(dice, &program.place, &input.ty.shape);
            }
            Form::Batch { size, mapped }
        }
    };
    if crate::check::traced(program).is_ok_and(|traced| traced.is_err()) {
        *program = plain;
    }
}

/// Everything that an operation may be told, of a first operand of this type.
fn parameters(dice: &mut Dice, ty: &Type) -> Parameters {
    let rank = ty.rank() as isize;
    let mut axis = || match dice.once_in(3) {
        true if rank > 0 => dice.within(-rank, -1),
        _ => dice.within(0, (rank - 1).max(0)),
    };
    let (axis, other) = (axis(), axis());
    let extent = match ty.shape.is_empty() {
        true => 0,
        false => ty.shape[axis.rem_euclid(rank) as usize],
    };
    let dims: Vec<usize> = (0..ty.rank()).collect();
    let some = dims.iter().filter(|_| dice.once_in(2));
    let axes: Vec<isize> = some.map(|&d| d as isize).collect();
    let (one, two) = (dice.roll(extent + 1), dice.roll(extent + 1));
    Parameters {
        axis,
        other,
        axes,
        permutation: dice.shuffled(&dims),
        shape: reshaped(dice, &ty.shape),
        wide: widened(dice, &ty.shape),
        index: dice.roll(extent),
        start: one.min(two),
        stop: one.max(two),
        count: 1 + dice.roll(3),
        step: 1 + dice.roll(3),
        low: dice.within(-2, 3),
        high: dice.within(-2, 3),
        number: dice.within(-8, 8) as f64 * 0.25,
        dtype: match dice.roll(6) {
            0 => *dice.one_of(&shardax::DType::ALL[..17]),
            _ => Class::Any.pick(dice),
        },
        flag: dice.once_in(2),
        over: Vec::new(),
    }
}

/// Another shape of as many elements.
fn reshaped(dice: &mut Dice, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    match dice.roll(4) {
        0 => shape.reverse(),
        1 if shape.len() > 1 => {
            let last = shape.pop().unwrap_or(1);
            if let Some(before) = shape.last_mut() {
                *before *= last;
            }
        }
        2 => shape.insert(dice.roll(shape.len() + 1), 1),
        _ => {
            let at = dice.roll(shape.len());
            if let Some(&size) = shape.get(at)
                && let Some(part) = [2, 3, 5].into_iter().find(|part| size % part == 0)
            {
                shape[at] = size / part;
                shape.insert(at + dice.roll(2), part);
            }
        }
    }
    shape
}

/// A shape that broadcasting leads to.
fn widened(dice: &mut Dice, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    for size in &mut shape {
        if *size == 1 && dice.once_in(2) {
            *size = crate::operations::size(dice);
        }
    }
    if dice.once_in(2) {
        shape.insert(0, crate::operations::size(dice));
    }
    shape
}
