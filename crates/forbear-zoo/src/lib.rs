//! Limiters as pure state machines, with a thin real HTTP server, for tests and the demo.
