//! What every store that processes share offers, whatever it is kept in.

/// Makes a type around [`SharedGates`](super::SharedGates) a member of a fleet: its counts, and the gate store itself.
macro_rules! member_of_a_fleet {
    ($name:ident) => {
        impl $name {
            /// How often the store was asked so far.
            #[must_use]
            pub fn counts(&self) -> $crate::gate::SharedCounts {
                self.0.counts()
            }

            /// The key by which all members of the fleet name accounts (K1): kept in the store, made by the first of them.
            ///
            /// # Errors
            /// [`StoreError::Unreachable`]($crate::gate::StoreError::Unreachable) where the store does not answer.
            pub async fn account_key(&self) -> Result<[u8; 32], $crate::gate::StoreError> {
                self.0.account_key().await.map_err(Into::into)
            }

            /// Gives back what this member holds, for the end of a process; what the store does not take within `time` comes
            /// back by itself some seconds later.
            pub async fn leave(&self, time: std::time::Duration) {
                self.0.leave(time).await;
            }

            /// Of how many scopes this member learns for the whole fleet (L5).
            #[must_use]
            pub fn learns_of(&self) -> usize {
                self.0.learns_of()
            }

            /// Whether the store is lost, and this member goes on alone.
            #[must_use]
            pub fn is_alone(&self) -> bool {
                self.0.is_alone()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("counts", &self.counts()).finish_non_exhaustive()
            }
        }

        impl $crate::gate::GateStore for $name {
            async fn update<R: Send>(
                &self,
                scopes: &[forbear_core::policy::BoundScope],
                step: impl FnMut(&mut [forbear_core::gate::Gate], forbear_core::time::Timestamp) -> R + Send,
            ) -> Result<R, $crate::gate::StoreError> {
                self.0.update(scopes, step).await
            }

            async fn restore(
                &self,
                scope: &forbear_core::policy::BoundScope,
                gate: forbear_core::gate::Gate,
            ) -> Result<(), $crate::gate::StoreError> {
                self.0.restore(scope, gate).await
            }

            fn now(&self) -> forbear_core::time::Timestamp {
                self.0.now()
            }

            fn note_waiting(&self, waiting: &std::collections::HashMap<forbear_core::scope::ScopeKey, u32>) {
                self.0.note_waiting(waiting);
            }
        }
    };
}

pub(crate) use member_of_a_fleet;
