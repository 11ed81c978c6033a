//! Where forbear's state lives: gate stores and the durable queue.
