//! The suite of gate stores on a real Redis: each member has a connection and a memory of its own.

mod gate_kit;

use std::sync::Arc;

use forbear_store::gate::{RedisGates, SharedOptions};
use gate_kit::redis::TestRedis;

struct Processes(TestRedis);

impl gate_kit::Fleet for Processes {
    type Store = RedisGates;

    async fn start() -> Processes {
        Processes(TestRedis::start().await)
    }

    async fn member(&self) -> Arc<RedisGates> {
        Arc::new(RedisGates::connect(&self.0.url(), SharedOptions::default()).await.unwrap())
    }

    async fn small(&self, scopes_max: usize) -> Arc<RedisGates> {
        let options = SharedOptions { scopes_max, ..SharedOptions::default() };
        Arc::new(RedisGates::connect(&self.0.url(), options).await.unwrap())
    }
}

gate_conformance!(Processes);
