//! Which places a runtime contacts for an image, by what its files say.

use std::net::SocketAddr;

use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::{EndpointState, Mirror, NodeConfig, Resolution};

use crate::{Runtime, RuntimeName, containerd, registries_conf};

/// The places for an image, in the order in which the runtime tries them. What policies list and the files do not
/// express is there as well, with the reason why it is not asked.
pub fn resolve(
    config: &NodeConfig,
    runtime: &Runtime,
    router: Option<SocketAddr>,
    image: &Reference,
) -> Resolution {
    if runtime.name == RuntimeName::Containerd && router.is_some() {
        return config.resolve_by_kind(image);
    }
    let in_file;
    let config = if runtime.name == RuntimeName::Containerd {
        config
    } else {
        in_file = registries_conf::in_file(config);
        &in_file
    };
    let mut resolution = config.resolve(image);
    let Some((scope, entry)) = config.entry_for(image.name()) else { return resolution };
    let kind = resolution.kind;
    if runtime.name == RuntimeName::Containerd {
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
        return resolution;
    }
    let (mirrors, is_closed) = registries_conf::asked(config, runtime, scope, entry, kind);
    leave_out(&mut resolution, entry.mirrors(kind).list.iter(), &mirrors);
    if let Some(source) = resolution.endpoints.last_mut().filter(|_| is_closed) {
        source.state = EndpointState::ClosedByFile;
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
