//! What a response says about limits (H1-H5).
