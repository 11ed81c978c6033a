//! The page about the six policies shows what the simulation finds today.

#[path = "../examples/pictures.rs"]
mod pictures;

use std::fs;

#[test]
fn the_page_of_the_six_policies_is_as_the_simulation_draws_it() {
    let shown = pictures::shown().unwrap();
    let again = "out of date: cargo run -p forbear-sim --example pictures";
    for (name, svg) in &shown.pictures {
        let there = fs::read_to_string(pictures::docs().join("pictures").join(name));
        assert_eq!(there.as_ref().ok(), Some(svg), "docs/pictures/{name} is {again}");
    }
    let page = fs::read_to_string(pictures::docs().join(pictures::PAGE)).unwrap();
    let new = pictures::with_figures(&page, &shown.figures).expect("it has a place for the figures");
    assert_eq!(page, new, "the table is {again}");
    for (name, _) in &shown.pictures {
        assert!(page.contains(&format!("](../pictures/{name})")), "the page does not show {name}");
    }
}
