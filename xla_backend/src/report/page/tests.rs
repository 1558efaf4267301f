use super::*;
use crate::report::tests::{KINDS, MEGATRON, mesh};
use crate::report::{HloModule, Placed, ReportOptions, Subject};

fn page(hlo: &[u8], arguments: Vec<Placed>) -> String {
    let subject = Subject {
        hlo: &HloModule::decode(hlo).unwrap(),
        mesh: &mesh("data=2,model=4"),
        arguments,
        results: vec![],
        traced: None,
        memory: None,
    };
    Report::new(&subject, ReportOptions::default())
        .unwrap()
        .to_html()
}

#[test]
fn a_page_needs_nothing_but_the_module() {
    for hlo in [KINDS, MEGATRON] {
        let page = page(hlo, vec![]);
        assert!(page.ends_with("</body>\n</html>\n"));
        assert!(page.contains("<h2>Collectives</h2>"));
        assert!(!page.contains("<h2>Arguments</h2>"));
        assert!(!page.contains("<h2>Memory of a device</h2>"));
    }
}

#[test]
fn an_argument_shows_who_holds_its_blocks() {
    let argument = Placed {
        path: "a<b>&\"c\"".to_owned(),
        ty: shardax_core::TensorType::new(shardax_core::DType::F32, [16, 32]),
        spec: shardax_sharding::PartitionSpec::new(("data", ())),
        is_state: false,
    };
    let page = page(MEGATRON, vec![argument]);
    assert!(page.contains(">a&lt;b&gt;&amp;&quot;c&quot;</b>"));
    for devices in ["devices 0-3", "devices 4-7", "2 blocks of [8, 32]"] {
        assert!(page.contains(devices), "{devices}");
    }
}

#[test]
fn text_is_escaped() {
    assert_eq!(
        escape("a < b & \"c\" > 'd'\u{1}"),
        "a &lt; b &amp; &quot;c&quot; &gt; 'd'\u{fffd}"
    );
}

#[test]
fn devices_are_ranges() {
    assert_eq!(device_ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10,11");
    assert_eq!(device_ranges(&[]), "");
}

#[test]
fn large_meshes_are_drawn_in_part() {
    let svg = svg::mesh(&mesh("pod=32,data=64,model=32"));
    assert!(svg.contains("pod=15 model"));
    assert!(svg.contains(&format!("and {} more devices", 32 * 64 * 32 - 16 * 16 * 16)));
    assert_eq!(svg.matches("<rect").count(), 16 * 16 * 16);
    let one = svg::mesh(&Mesh::single());
    assert_eq!(one.matches("<rect").count(), 1);
    assert!(!one.contains("more devices"));
}

#[test]
fn bars_have_one_scale() {
    let bar = |label: &str, bytes| Bar {
        label: label.to_owned(),
        parts: vec![("all-reduce", bytes), ("all-gather", 0)],
    };
    let svg = bars(&[bar("data", 500), bar("model", u64::MAX)]);
    assert!(svg.contains("width=\"640\" height=\"22\""), "{svg}");
    assert!(svg.contains("all-reduce: 500 B"));
    assert!(bars(&[]).ends_with("</svg>\n"));
}

#[test]
fn pictures_of_placements_follow_the_spec() {
    let mesh = mesh("data=2,model=4");
    let picture = |spec: &shardax_sharding::PartitionSpec, shape: &[usize]| {
        placement::picture(spec, &mesh, shape)
    };
    let spec = shardax_sharding::PartitionSpec::new(((), ("model", "data"), ()));
    let text = picture(&spec, &[3, 16, 5]);
    let held: Vec<usize> = [0, 4, 1, 5, 2, 6, 3, 7]
        .map(|device| text.find(&format!("devices {device}<")).unwrap())
        .to_vec();
    assert!(held.is_sorted(), "{text}");
    assert!(
        text.contains("8 blocks of [3, 2, 5]; dimension 1 down, 2 across"),
        "{text}"
    );
    let whole = picture(&shardax_sharding::PartitionSpec::replicated(0), &[]);
    assert!(whole.contains("devices 0-7<") && whole.contains("whole on every device"));
    // What does not fit is not drawn.
    assert_eq!(
        picture(&shardax_sharding::PartitionSpec::new(("data",)), &[3]),
        ""
    );
}
