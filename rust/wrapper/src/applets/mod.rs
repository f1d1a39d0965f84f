//! What else this program is when it is called by another name: an image that holds nothing else needs both.

pub mod copy;
pub mod health_probe;
