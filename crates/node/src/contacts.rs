//! Which places a runtime contacts for an image, by what its files say.

use std::net::SocketAddr;

use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::{Endpoint, EndpointState, Mirror, NodeConfig, Resolution};

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
    let kind = resolution.kind;
    let wanted = image.as_str().get(image.name().len()..).unwrap_or_default();
    if let Some((scope, entry)) = registries_conf::table(config, image.name()) {
        let listed = &entry.mirrors(kind).list;
        let asked = registries_conf::asked(runtime, scope, entry, kind);
        if let Some(kept) = registries_conf::kept_port(scope, image.name()) {
            let source = resolution.endpoints.pop();
            resolution.scope = Some(scope.clone());
            resolution.endpoints = listed.iter().map(|mirror| with_port(mirror, kept, wanted)).collect();
            resolution.endpoints.extend(source.map(|source| Endpoint { insecure: entry.insecure, ..source }));
        }
        leave_out(&mut resolution, listed.iter(), &asked);
        if resolution.endpoints.iter().any(|endpoint| endpoint.state == EndpointState::GivenUp) {
            let asked = resolution.endpoints.iter_mut().filter(|one| one.state == EndpointState::Asked);
            asked.for_each(|endpoint| endpoint.state = EndpointState::GivenUp);
        }
    } else {
        // Readers find no table, also where policies are about the domain.
        let (image, state) = (image.as_str().to_owned(), EndpointState::Asked);
        resolution.endpoints = vec![Endpoint { image, is_source: true, insecure: false, state }];
    }
    let closings = registries_conf::Closings::new(config, &mut Rendered::default());
    for endpoint in &mut resolution.endpoints {
        let place = endpoint.image.strip_suffix(wanted).unwrap_or(&endpoint.image);
        if endpoint.state == EndpointState::Asked && closings.closing(place).is_some() {
            endpoint.state = EndpointState::ClosedByFile;
        }
    }
    resolution
}

/// What readers of `registries.conf` ask a mirror for where they keep the port of the image: `kept` begins with it.
fn with_port(mirror: &Mirror, kept: &str, wanted: &str) -> Endpoint {
    let place = [mirror.location.as_str(), kept].concat();
    let is_name = Reference::parse(&place).is_ok_and(|image| image.name() == place);
    Endpoint {
        image: place + wanted,
        is_source: false,
        insecure: mirror.insecure,
        state: if is_name { EndpointState::Asked } else { EndpointState::GivenUp },
    }
}

/// Marks the mirrors that the files do not name. Endpoints are those of `listed`, in order, and the source.
fn leave_out<'a>(resolution: &mut Resolution, listed: impl Iterator<Item = &'a Mirror>, asked: &[&Mirror]) {
    for (endpoint, mirror) in resolution.endpoints.iter_mut().zip(listed) {
        let is_wanted = matches!(endpoint.state, EndpointState::Asked | EndpointState::GivenUp);
        if is_wanted && !asked.contains(&mirror) {
            endpoint.state = EndpointState::LeftOut;
        }
    }
}
