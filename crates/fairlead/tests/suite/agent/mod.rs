//! The agent as a process of its own: on files, and on a real node.

mod files;
mod node;
