//! The command `forbear`.
fn main() {}
