//! The suite of gate stores, on the one in memory: each member of a fleet is a worker of one process.

mod gate_kit;

use std::sync::Arc;

use forbear_store::gate::{Clock, MemoryGates};

struct Workers(Arc<MemoryGates>);

impl gate_kit::Fleet for Workers {
    type Store = MemoryGates;

    async fn start() -> Workers {
        Workers(Arc::default())
    }

    async fn member(&self) -> Arc<MemoryGates> {
        self.0.clone()
    }

    async fn small(&self, scopes: usize) -> Arc<MemoryGates> {
        Arc::new(MemoryGates::with_room(Clock::start(), scopes))
    }
}

gate_conformance!(Workers);
