//! Reading a job for those who claim, from whichever database it is in.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{
    error::QueueError,
    gates::GateRecord,
    item::{Item, Lane, LaneId},
    postgres,
    shared::Shared,
    sqlite::{self, reader::Reader},
};

pub(crate) enum Pages {
    Sqlite(sqlite::reader::Pages),
    Postgres(postgres::reader::Pages),
}

impl Pages {
    /// Keeps claims out while it is held, where the reader and the writer of one process could miss each other.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Reader>> {
        match self {
            Pages::Sqlite(pages) => Some(pages.lock()),
            Pages::Postgres(_) => None,
        }
    }

    pub(crate) async fn claim(
        &self,
        shared: &Arc<Shared>,
        lane: LaneId,
        max: usize,
    ) -> Result<Vec<Item>, QueueError> {
        match self {
            Pages::Sqlite(pages) => pages.claim(shared, lane, max),
            Pages::Postgres(pages) => pages.claim(shared, lane, max).await,
        }
    }

    pub(crate) async fn ready_lanes(
        &self,
        shared: &Shared,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<Vec<Lane>, QueueError> {
        match self {
            Pages::Sqlite(pages) => pages.ready_lanes(shared, after, limit),
            Pages::Postgres(pages) => pages.ready_lanes(shared, after, limit).await,
        }
    }

    pub(crate) async fn lane(&self, shared: &Shared, id: LaneId) -> Result<Option<Lane>, QueueError> {
        match self {
            Pages::Sqlite(pages) => pages.lane(shared, id),
            Pages::Postgres(pages) => pages.lane(shared, id).await,
        }
    }

    pub(crate) fn load_gate(&self, shared: &Shared, key: &str) -> Result<Option<GateRecord>, QueueError> {
        match self {
            Pages::Sqlite(pages) => pages.load_gate(shared, key),
            Pages::Postgres(pages) => pages.load_gate(shared, key),
        }
    }

    pub(crate) fn load_gates(
        &self,
        shared: &Shared,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GateRecord>, QueueError> {
        match self {
            Pages::Sqlite(pages) => pages.load_gates(shared, after, limit),
            Pages::Postgres(pages) => pages.load_gates(shared, after, limit),
        }
    }

    /// Whether this process is the one that imports. A file is run by one process, so that is.
    pub(crate) fn may_import(&self, shared: &Shared) -> Result<bool, QueueError> {
        match self {
            Pages::Sqlite(_) => shared.inner.lock().refuse().map(|()| true),
            Pages::Postgres(pages) => pages.may_import(shared),
        }
    }
}
