//! Pictures are small, well formed, of text and shapes, and the same for the same run.

use std::time::Duration;

use forbear_core::policy::ScopePolicy;
use forbear_sim::{
    Client, Gated, Scenario, Trace, Work,
    habits::{Alone, Retry},
    picture::{Column, side_by_side},
    run_traced,
    sets::{Kind, set_a},
};

fn scenario() -> Scenario {
    Scenario { workers: 50, work: Work::Pages(1500), ..set_a(Kind::TokenBucket, 1, true) }
}

fn traced<C: Client>(mut client: C) -> Trace {
    let mut trace = Trace::new();
    run_traced(&scenario(), &mut client, &mut trace).unwrap();
    trace
}

fn gated() -> Trace {
    traced(Gated::new(ScopePolicy::default(), 50))
}

fn naive() -> Trace {
    traced(Alone::new(Retry::Every(Duration::from_secs(2)), 50))
}

/// The fill colours of all shapes of a picture that have many corners.
fn fills(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let polygons =
        document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "polygon")));
    polygons.filter_map(|node| node.attribute("fill")).map(str::to_owned).collect()
}

#[test]
fn a_picture_is_xml_whose_words_are_text() {
    let (gated, naive) = (gated(), naive());
    let columns = [
        Column { name: "polite & <calm>", note: "a note", trace: &gated },
        Column { name: "every 2 s", note: "", trace: &naive },
    ];
    let svg = side_by_side("limit \"5/s\"", &columns).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for wanted in [
        "limit \"5/s\"",
        "polite & <calm>",
        "a note",
        "every 2 s",
        "seconds",
        "requests/s",
        "starts/s",
        "gate",
        "refused",
        "paused",
        "no gate",
        "0",
    ] {
        let wanted = if wanted == "seconds" && !texts.contains(&wanted) { "minutes" } else { wanted };
        assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
    }
}

#[test]
fn a_picture_shows_refusals_and_pauses_where_there_were_any() {
    let (gated, naive) = (gated(), naive());
    let of = |trace| fills(&side_by_side("", &[Column { name: "", note: "", trace }]).unwrap());
    let (gated, naive) = (of(&gated), of(&naive));
    let (served, refused, paused) = ("#6EAAD7", "#D55E00", "#E2961E");
    for colour in [served, refused, paused] {
        assert!(gated.iter().any(|fill| fill == colour), "{colour}: {gated:?}");
    }
    assert!(
        naive.iter().any(|fill| fill == refused) && !naive.iter().any(|fill| fill == paused),
        "{naive:?}"
    );
    let mut free = Trace::new();
    free.sent(Duration::ZERO);
    free.arrived(Duration::ZERO, true, false);
    free.end(Duration::from_secs(1), None);
    let free = of(&free);
    assert!(free.iter().any(|fill| fill == served) && !free.iter().any(|fill| fill == refused), "{free:?}");
}

#[test]
fn the_same_run_gives_the_same_bytes_and_six_are_under_200_kb() {
    let six = |gated: &Trace, naive: &Trace| {
        let column = |i| Column { name: "x", note: "y", trace: if i % 2 == 0 { gated } else { naive } };
        side_by_side("six", &(0..6).map(column).collect::<Vec<_>>()).unwrap()
    };
    let (one, two) = (six(&gated(), &naive()), six(&gated(), &naive()));
    assert_eq!(one, two);
    assert!(one.len() < 200_000, "{}", one.len());
    assert!(side_by_side("none", &[]).is_ok_and(|svg| roxmltree::Document::parse(&svg).is_ok()));
    let empty = Trace::new();
    assert!(side_by_side("", &[Column { name: "", note: "", trace: &empty }]).is_ok());
}
