//! The watch on a real API server: images in use are looked at in their registries, and what is found is reported.

mod bench;
mod bounds;
mod credentials;
mod pace;
mod states;
