//! A real nginx, as Debian packages it, in front of another server: it decodes paths and encodes them anew, as the one
//! does that Harbor is installed with.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::process::{Process, Program};
use crate::supervisor::Supervisor;
use crate::{eventually, ports, unique, workdir};

const READY_DEADLINE: Duration = Duration::from_secs(30);

/// A running nginx; dropping it kills it.
#[derive(Debug)]
pub struct Nginx {
    _process: Process,
    address: String,
}

impl Nginx {
    /// Passes on everything to `upstream`.
    pub async fn start(upstream: SocketAddr) -> Result<Self> {
        let supervisor = tokio::task::spawn_blocking(Supervisor::of_this_process).await??;
        let name = unique("nginx");
        let directory = supervisor.directory().join(format!("{name}.d"));
        std::fs::create_dir_all(&directory)?;
        let address = format!("127.0.0.1:{}", ports::free()?);
        let at = directory.display();
        // The address has a path, which makes nginx send its own form of the request's path.
        let configuration = format!(
            "daemon off; master_process off; pid {at}/pid; error_log stderr;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {at}; proxy_temp_path {at}; fastcgi_temp_path {at};\n\
             uwsgi_temp_path {at}; scgi_temp_path {at};\n\
             server {{ listen {address}; location /api/ {{ proxy_pass http://{upstream}/api/; }} }} }}\n"
        );
        let file = directory.join("nginx.conf");
        workdir::write(&file, configuration)?;
        let arguments = ["-c".to_owned(), file.display().to_string(), "-p".to_owned(), at.to_string()];
        let program = Program::new(program()).args(arguments);
        let process = program.start_under(supervisor, &name).await?;
        eventually(READY_DEADLINE, || async {
            tokio::net::TcpStream::connect(&address).await?;
            Ok(())
        })
        .await?;
        Ok(Self { _process: process, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Where Debian puts it, unless the path says otherwise.
fn program() -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|at| at.join("nginx")).find(|file| file.is_file());
    found.unwrap_or_else(|| "/usr/sbin/nginx".into())
}
