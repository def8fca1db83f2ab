//! The agent as a process of its own: on files, on simulated nodes, and on a real node.

mod config_path;
mod files;
mod installed;
mod node;
mod old_containerd;
mod pulls;
mod reports;
mod scopes;
