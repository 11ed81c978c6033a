//! Exits for tests, and the order in which requests came to all of them together.

use std::fs;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use forbear_zoo::proxy::{Asked, Behaviour, Proxy, ProxyOptions};
use forbear_zoo::{Hit, Log};

use crate::kit::Job;

/// The address of the first exit; the others follow. What asks from 127.0.0.1 went past all of them.
const FIRST: u8 = 11;

/// One request to an exit: which exit, and `host:port` of its origin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Passed {
    pub(crate) exit: usize,
    pub(crate) origin: String,
}

/// Several exits, with the order of all requests to them.
pub(crate) struct Exits {
    pub(crate) all: Vec<Proxy>,
    passed: Arc<Mutex<Vec<Passed>>>,
}

impl Exits {
    /// So many that carry everything.
    pub(crate) async fn start(count: usize) -> Exits {
        let mut all = Vec::new();
        for index in 0..count {
            all.push(Proxy::start(ProxyOptions::at(last(index))).await.unwrap());
        }
        let exits = Exits { all, passed: Arc::default() };
        for index in 0..count {
            exits.behave(index, |_| Behaviour::Carry);
        }
        exits
    }

    /// From now on the exit does what `behave` says.
    pub(crate) fn behave(&self, index: usize, mut behave: impl FnMut(&Asked) -> Behaviour + Send + 'static) {
        let passed = Arc::clone(&self.passed);
        self.all[index].behave(move |asked| {
            passed.lock().unwrap().push(Passed { exit: index, origin: asked.origin.clone() });
            behave(asked)
        });
    }

    /// The requests to all of them, in their order.
    pub(crate) fn passed(&self) -> Vec<Passed> {
        self.passed.lock().unwrap().clone()
    }

    /// Puts them into a list beside the job; flags that name it.
    pub(crate) fn listed(&self, job: &Job, scheme: &str, login: &str) -> [&'static str; 2] {
        let lines: String = self.all.iter().map(|proxy| proxy.url(scheme, login) + "\n").collect();
        fs::write(job.path("exits.txt"), format!("# ways out\n{lines}")).unwrap();
        ["--proxies", "exits.txt"]
    }

    /// `127.0.0.x:port` of an exit, by which it is named everywhere.
    pub(crate) fn name(&self, index: usize) -> String {
        self.all[index].addr().to_string()
    }
}

fn last(index: usize) -> u8 {
    FIRST + u8::try_from(index).unwrap()
}

/// The address from which an exit asks its origins.
pub(crate) fn ip(index: usize) -> IpAddr {
    IpAddr::from([127, 0, 0, last(index)])
}

/// Which exit a request came by; none if it came past all of them.
pub(crate) fn exit_of(hit: &Hit) -> Option<usize> {
    let IpAddr::V4(client) = hit.client else { return None };
    usize::from(client.octets()[3]).checked_sub(FIRST.into())
}

/// Nothing went past the exits (E5).
pub(crate) fn assert_never_direct(log: &Log) {
    let direct: Vec<&Hit> = log.hits().iter().filter(|hit| exit_of(hit).is_none()).collect();
    assert!(direct.is_empty(), "went past all exits: {direct:#?}");
}
