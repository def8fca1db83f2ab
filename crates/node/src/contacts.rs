//! Which places a runtime contacts for an image, by what its files say.

use std::net::SocketAddr;

use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::{EndpointState, Mirror, NodeConfig, Resolution};

use crate::{Rendered, Runtime, RuntimeName, containerd, registries_conf};

/// The places for an image, in the order in which the runtime tries them. What policies list and the files do not
/// express is there as well, with the reason why it is not asked.
pub fn resolve(
    config: &NodeConfig,
    runtime: &Runtime,
    router: Option<SocketAddr>,
    image: &Reference,
) -> Resolution {
    match (runtime.name, router) {
        (RuntimeName::Containerd, Some(_)) => config.resolve_by_kind(image),
        (RuntimeName::Containerd, None) => by_hosts_files(config, runtime, image),
        (RuntimeName::Crio | RuntimeName::Podman, _) => by_registries_conf(config, runtime, image),
    }
}

fn by_hosts_files(config: &NodeConfig, runtime: &Runtime, image: &Reference) -> Resolution {
    let mut resolution = config.resolve(image);
    let Some((_, entry)) = config.entry_for(image.name()) else { return resolution };
    let kind = resolution.kind;
    let registry = image.name().split('/').next().unwrap_or_default();
    let (mirrors, is_open) = containerd::asked(config, runtime, registry, kind);
    leave_out(&mut resolution, entry.mirrors(kind).list.iter(), &mirrors);
    if let Some(source) = resolution.endpoints.last_mut() {
        // The file is about the whole registry, whatever the scope.
        match source.state {
            EndpointState::Asked if !is_open => source.state = EndpointState::ClosedByFile,
            _ if is_open => source.state = EndpointState::Asked,
            _ => {}
        }
    }
    resolution
}

fn by_registries_conf(config: &NodeConfig, runtime: &Runtime, image: &Reference) -> Resolution {
    let in_file = registries_conf::in_file(config);
    let mut resolution = in_file.resolve(image);
    if let Some((scope, entry)) = in_file.entry_for(image.name()) {
        let kind = resolution.kind;
        let mirrors = registries_conf::asked(runtime, scope, entry, kind);
        leave_out(&mut resolution, entry.mirrors(kind).list.iter(), &mirrors);
    }
    let closings = registries_conf::Closings::new(config, &mut Rendered::default());
    let wanted = image.as_str().get(image.name().len()..).unwrap_or_default();
    for endpoint in &mut resolution.endpoints {
        let place = endpoint.image.strip_suffix(wanted).unwrap_or(&endpoint.image);
        if endpoint.state == EndpointState::Asked && closings.closing(place).is_some() {
            endpoint.state = EndpointState::ClosedByFile;
        }
    }
    resolution
}

/// Marks the mirrors that the files do not name. Endpoints are those of `listed`, in order, and the source.
fn leave_out<'a>(resolution: &mut Resolution, listed: impl Iterator<Item = &'a Mirror>, asked: &[&Mirror]) {
    for (endpoint, mirror) in resolution.endpoints.iter_mut().zip(listed) {
        if endpoint.state == EndpointState::Asked && !asked.contains(&mirror) {
            endpoint.state = EndpointState::LeftOut;
        }
    }
}
