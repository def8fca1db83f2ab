//! The inventory as people see it: at admission, on a real node, and on the command line.

mod admission;
mod command;
mod node;
