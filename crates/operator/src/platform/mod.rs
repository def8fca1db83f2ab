//! What any operator needs: leader election, certificates, configuration, health, telemetry, installation.

pub mod api_error;
pub mod certificates;
pub mod clock;
pub mod config;
pub mod health;
pub mod http;
pub mod install;
pub mod leader;
pub mod settings;
pub mod telemetry;
