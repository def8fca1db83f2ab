#!/usr/bin/env bash
# Makes sure that what the tests need, or with the argument `demo` or `bench` what those need, is on this machine. As
# root on Debian, missing packages are installed; elsewhere they are named. Fails only without what nothing works
# without: Rust, Go and a C compiler.
set -euo pipefail

# package, and a file that tells whether it is there
readonly NODE_PACKAGES=(
  "runc /usr/sbin/runc"                                  # the node: starts containers
  "containernetworking-plugins /usr/lib/cni/ptp"         # the node: gives Pods a network
  "iproute2 /usr/sbin/ip"                                # the node: links its network namespace with the machine
  "iptables /usr/sbin/iptables"                          # the node: kube-proxy translates the addresses of Services
)
readonly TEST_PACKAGES=(
  "containerd /usr/bin/containerd"                       # containerd 1.6, which reads hosts.toml by older rules
  "docker-registry /usr/bin/docker-registry"             # registry 2.8, which deletes differently from 3
  "musl-tools /usr/bin/musl-gcc"                         # the static binary of the image
  "nginx /usr/sbin/nginx"                                # decodes paths in front of Harbor
  "podman /usr/bin/podman"                               # reads registries.conf, also for names with tag and digest
  "prometheus /usr/bin/promtool"                         # checks the alerts of the chart; what discovery asks
  "skopeo /usr/bin/skopeo"                               # what copies are compared with
)
readonly BENCH_PACKAGES=(
  "valgrind /usr/bin/valgrind"                           # counts instructions
)

failed=0
need() {
  if ! command -v "$1" >/dev/null; then
    echo "missing: $2" >&2
    failed=1
  fi
}
need cargo "Rust. Install it with: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
need go "Go 1.26 or later. Install it from https://go.dev/dl/ (unpack to /usr/local, put /usr/local/go/bin on the PATH)"
need cc "a C compiler. On Debian: apt-get install build-essential"
((failed == 0)) || exit 1
packages=("${NODE_PACKAGES[@]}")
if [[ "${1:-}" == demo ]]; then
  # Only root can have a node, and the demo builds no image: nothing else is needed for it.
  [[ $(id -u) == 0 ]] || exit 0
else
  packages+=("${TEST_PACKAGES[@]}")
fi
[[ "${1:-}" != bench ]] || packages+=("${BENCH_PACKAGES[@]}")

# The static binary of the image is built for a target that a fresh toolchain does not have.
readonly MUSL=x86_64-unknown-linux-musl
if [[ "${1:-}" != demo ]] && command -v rustup >/dev/null && ! (cd "$(dirname "$0")/.." && rustup target list --installed) | grep -qx "$MUSL"; then
  echo "Adding the Rust target $MUSL" >&2
  (cd "$(dirname "$0")/.." && rustup target add "$MUSL") >&2 ||
    echo "Without it the test of the image fails, and nothing else: rustup target add $MUSL" >&2
fi

missing=()
for entry in "${packages[@]}"; do
  read -r package file <<<"$entry"
  [[ -e "$file" ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

install="apt-get install --no-install-recommends ${missing[*]}"
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "Not installed, and not needed for most tests: ${missing[*]}" >&2
  echo "On Debian, as root: $install" >&2
  exit 0
fi

echo "Installing ${missing[*]}" >&2
# containerd, docker-registry, nginx and prometheus would start themselves and stay; Debian asks this script before
# starting any service.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
$install --quiet=2 --yes >/dev/null
