use super::super::proto;
use super::*;

/// Computations of a module, callees first, the last the entry: a name, and instructions as
/// `name = opcode operand operand calls=computation,computation number=0 name=op_name#1`, the last the root.
/// The number is that of a parameter or of an element.
fn module(computations: &[(&str, &[&str])]) -> HloModule {
    let mut ids: HashMap<String, i64> = HashMap::new();
    let mut id = |name: &str| {
        let next = ids.len() as i64 + 1;
        *ids.entry(name.to_owned()).or_insert(next)
    };
    let mut built = vec![];
    for (computation, lines) in computations {
        let mut instructions = vec![];
        for line in *lines {
            let (name, rest) = line.split_once(" = ").unwrap();
            let mut words = rest.split(' ');
            let mut instruction = proto::Instruction {
                name: name.to_owned(),
                id: id(&format!("{computation}/{name}")),
                opcode: words.next().unwrap().to_owned(),
                shape: Some(proto::Shape {
                    element_type: 11,
                    dimensions: vec![8],
                    tuple_shapes: vec![],
                }),
                ..Default::default()
            };
            for word in words {
                if let Some(called) = word.strip_prefix("calls=") {
                    instruction.called_computation_ids = called.split(',').map(&mut id).collect();
                } else if let Some(op_name) = word.strip_prefix("name=") {
                    instruction.metadata = Some(proto::Metadata {
                        op_name: op_name.to_owned(),
                        ..Default::default()
                    });
                } else if let Some(number) = word.strip_prefix("number=") {
                    instruction.parameter_number = number.parse().unwrap();
                    instruction.tuple_index = number.parse().unwrap();
                } else {
                    instruction
                        .operand_ids
                        .push(id(&format!("{computation}/{word}")));
                }
            }
            instructions.push(instruction);
        }
        built.push(proto::Computation {
            name: (*computation).to_owned(),
            id: id(computation),
            root_id: instructions.last().unwrap().id,
            instructions,
        });
    }
    let module = proto::Module {
        name: "module".into(),
        entry_computation_id: built.last().unwrap().id,
        computations: built,
        ..Default::default()
    };
    HloModule::from_proto(proto::ModuleWithConfig {
        module: Some(module),
        config: None,
    })
    .unwrap()
}

/// The value of an instruction that is reached through these calls, `entry/while`.
fn value(module: &HloModule, callers: &[&str], name: &str) -> Value {
    let site = |name: &str| {
        let (computation, instruction) = name.split_once('/').unwrap();
        let at = |c: &Computation| c.name() == computation;
        let computation = module.computations().iter().position(at).unwrap();
        let instructions = module.computations()[computation].instructions();
        Site {
            computation,
            instruction: instructions
                .iter()
                .position(|i| i.name() == instruction)
                .unwrap(),
        }
    };
    Value {
        callers: callers.iter().map(|name| site(name)).collect(),
        site: site(name),
        element: vec![],
    }
}

const CONDITION: (&str, &[&str]) = (
    "condition",
    &[
        "p = parameter number=0",
        "again = get-tuple-element p number=0",
    ],
);
const LOOP: (&str, &[&str]) = (
    "entry",
    &[
        "a = parameter number=0",
        "b = parameter number=1",
        "zero = constant",
        "init = tuple a zero b",
        "while = while init calls=body,condition",
        "sum = get-tuple-element while number=1",
    ],
);

#[test]
fn what_a_loop_hands_on_unchanged_is_the_argument() {
    let body: (&str, &[&str]) = (
        "body",
        &[
            "p = parameter number=0",
            "a = get-tuple-element p number=0",
            "sum = get-tuple-element p number=1",
            "b = get-tuple-element p number=2",
            "layer = dynamic-slice b",
            "shaped = bitcast layer",
            "more = add sum shaped",
            "copy = copy b",
            "next = tuple a more copy",
        ],
    );
    let module = module(&[CONDITION, body, LOOP]);
    let flow = Flow::new(&module);
    let origin = |name| flow.origin(&value(&module, &["entry/while"], name));
    assert_eq!(origin("body/a"), Origin::Argument(0));
    assert_eq!(origin("body/shaped"), Origin::Argument(1));
    let carried = Origin::Carried {
        callers: 1,
        index: 1,
    };
    assert_eq!(origin("body/sum"), carried);
    assert_eq!(origin("body/more"), Origin::Computed);
    assert_eq!(
        flow.origin(&value(&module, &[], "entry/sum")),
        Origin::Computed
    );
}

#[test]
fn fusions_and_asynchronous_calls_are_seen_through() {
    let module = module(&[
        (
            "fused",
            &[
                "q = parameter number=0",
                "r = parameter number=1",
                "cut = slice r",
            ],
        ),
        ("wrapped", &["s = parameter number=0", "t = copy s"]),
        (
            "entry",
            &[
                "a = parameter number=0",
                "b = parameter number=1",
                "fusion = fusion a b calls=fused",
                "start = async-start fusion calls=wrapped",
                "done = async-done start calls=wrapped",
                "gathered = all-gather-start done",
                "end = all-gather-done gathered",
            ],
        ),
    ]);
    let flow = Flow::new(&module);
    assert_eq!(
        flow.origin(&value(&module, &[], "entry/end")),
        Origin::Argument(1)
    );
}

/// A loop whose body reduces an argument and adds it to a carry, as GPU compilers write it.
fn accumulation(also: &[&'static str]) -> HloModule {
    let mut body = vec![
        "p = parameter number=0",
        "a = get-tuple-element p number=0",
        "sum = get-tuple-element p number=1",
        "b = get-tuple-element p number=2",
        "start = all-reduce-start b",
        "done = all-reduce-done start",
        "scaled = multiply done a",
    ];
    body.extend(also);
    body.extend([
        "more = fusion sum scaled calls=fused",
        "next = tuple a more b",
    ]);
    let fused: &[&str] = &[
        "q = parameter number=0",
        "r = parameter number=1",
        "add = add q r",
    ];
    module(&[("fused", fused), CONDITION, ("body", &body), LOOP])
}

#[test]
fn a_carry_that_only_accumulates_is_found() {
    let accumulated = |module: &HloModule| {
        let start = value(module, &["entry/while"], "body/start");
        Flow::new(module).accumulated_in(start)
    };
    assert_eq!(accumulated(&accumulation(&[])), Some(1));
    // A residual stream is read too, by what the next layer computes.
    assert_eq!(accumulated(&accumulation(&["read = tanh sum"])), None);
}

#[test]
fn a_carry_of_another_element_is_no_accumulation() {
    let body: (&str, &[&str]) = (
        "body",
        &[
            "p = parameter number=0",
            "a = get-tuple-element p number=0",
            "sum = get-tuple-element p number=1",
            "b = get-tuple-element p number=2",
            "reduced = all-reduce b",
            "more = add sum reduced",
            "next = tuple more sum b",
        ],
    );
    let module = module(&[CONDITION, body, LOOP]);
    let reduced = value(&module, &["entry/while"], "body/reduced");
    assert_eq!(Flow::new(&module).accumulated_in(reduced), None);
}

fn is_only_split_again(users: &[&'static str]) -> bool {
    let mut entry = vec![
        "a = parameter number=0",
        "id = partition-id",
        "table = constant",
        "offset = dynamic-slice table id",
        "gathered = all-gather a",
        "turned = transpose gathered",
    ];
    entry.extend(users);
    let fused: &[&str] = &[
        "q = parameter number=0",
        "r = parameter number=1",
        "part = dynamic-slice q r",
        "sine = sine part",
    ];
    let module = module(&[("fused", fused), ("entry", &entry)]);
    let gathered = value(&module, &[], "entry/gathered");
    Flow::new(&module).is_only_split_again(gathered)
}

#[test]
fn what_is_only_split_again_is_found() {
    assert!(is_only_split_again(&[
        "own = dynamic-slice turned offset",
        "end = sine own"
    ]));
    assert!(is_only_split_again(&[
        "own = fusion turned offset calls=fused"
    ]));
    // The same part on every device; something else reads it; nothing reads it.
    assert!(!is_only_split_again(&["part = dynamic-slice turned table"]));
    assert!(!is_only_split_again(&[
        "own = dynamic-slice turned offset",
        "all = sine gathered"
    ]));
    assert!(!is_only_split_again(&[
        "own = dynamic-slice turned offset",
        "all = tuple turned own"
    ]));
    assert!(!is_only_split_again(&["other = sine a"]));
}

#[test]
fn what_is_returned_has_the_number_of_its_result() {
    let module = module(&[(
        "entry",
        &[
            "a = parameter number=0",
            "gathered = all-gather a",
            "read = sine gathered",
            "copy = copy gathered",
            "all = tuple a read copy",
        ],
    )]);
    let flow = Flow::new(&module);
    let returned = |name| flow.returned_as(value(&module, &[], name));
    assert_eq!(returned("entry/gathered"), Some(2));
    assert_eq!(returned("entry/read"), Some(1));
    let single = super::tests::module(&[("entry", &["a = parameter number=0", "end = copy a"])]);
    let only = value(&single, &[], "entry/a");
    assert_eq!(Flow::new(&single).returned_as(only), Some(0));
}

#[test]
fn what_a_compiler_has_joined_is_taken_apart() {
    let joined: &[&str] = &[
        "q = parameter number=0",
        "r = parameter number=1",
        "join = concatenate q r",
    ];
    let product: &[&str] = &["s = parameter number=0", "end = dot s s name=dot#7"];
    let module = module(&[
        ("joined", joined),
        ("product", product),
        (
            "wrapped",
            &["t = parameter number=0", "reduced = all-reduce t"],
        ),
        (
            "entry",
            &[
                "a = parameter number=0",
                "fusion = fusion a calls=product name=other#1",
                "flat = bitcast fusion",
                "sum = reduce a name=reduce#8",
                "all = fusion flat sum calls=joined",
                "start = async-start all calls=wrapped",
                "done = async-done start calls=wrapped",
            ],
        ),
    ]);
    let flow = Flow::new(&module);
    let operand = value(&module, &["entry/start"], "wrapped/t");
    let pieces = flow.pieces(&operand);
    let names: Vec<_> = pieces.iter().map(|piece| flow.name_before(piece)).collect();
    assert_eq!(names, [Some("dot#7"), Some("reduce#8")]);
    assert_eq!(flow.pieces(&value(&module, &[], "entry/sum")), []);
}
