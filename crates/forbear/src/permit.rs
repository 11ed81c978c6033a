//! The right to send one request now.

/// Proof that the gate admitted one request.
///
/// Everything that puts a request on the wire takes a `&Permit`, and only the gate's side of this crate makes them.
/// So a request without a permit does not compile: first try, retry, redirect hop, robots.txt and probe alike (S4).
#[derive(Debug)]
pub struct Permit {
    pub(crate) _granted: (),
}

impl Permit {
    /// A permit that no gate granted, for tests and benchmarks of the HTTP client alone.
    #[cfg(feature = "unmetered")]
    pub fn unmetered() -> Permit {
        Permit { _granted: () }
    }
}
