//! The profiles, one table a service.

use super::profile::{BASE, Profile};

/// In the order of their names; a test says so.
pub(crate) const ALL: &[Profile] = &[Profile { name: "github", hosts: &["api.github.com"], ..BASE }];
