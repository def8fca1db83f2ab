#!/usr/bin/env bash
# Builds the programs that test clusters run, once per machine, into a cache outside the checkout.
#
#   cluster/build.sh [PART...]               parts: see the lists below; without arguments all of the first
#   cluster/build.sh --forecast [PART...]    only prints how many minutes one core needs for what is not built yet
#
# Prints the directory that holds the programs as its only line on standard output; progress goes to standard error.
# A part is built again only when its sources or pinned versions change, so a fresh clone finds what another one built.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

readonly KUBERNETES_VERSION=v1.36.4
readonly REGISTRY=github.com/distribution/distribution/v3/cmd/registry@v3.1.2
readonly KWOK=sigs.k8s.io/kwok/cmd/kwok@v0.8.0
readonly HELM=helm.sh/helm/v4/cmd/helm@v4.3.1
readonly CRANE=github.com/google/go-containerregistry/cmd/crane@v0.22.1

# Cheap and most wanted first: tests that need the control plane only can begin while the rest is still built.
readonly PARTS=(programs controlplane registry containerd kwok helm)
# Built only when named: what `make bench` compares with.
readonly FURTHER_PARTS=(crane)

if [[ -n "${FAIRLEAD_TEST_ASSETS:-}" && "${1:-}" == --forecast ]]; then
  echo 0
  exit 0
elif [[ -n "${FAIRLEAD_TEST_ASSETS:-}" ]]; then
  if [[ ! -d "$FAIRLEAD_TEST_ASSETS" ]]; then
    echo "FAIRLEAD_TEST_ASSETS=$FAIRLEAD_TEST_ASSETS is not a directory: unset it to have the programs built" >&2
    exit 1
  fi
  (cd "$FAIRLEAD_TEST_ASSETS" && pwd)
  exit 0
fi

cache=${FAIRLEAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlead}
mkdir -p "$cache/parts" "$cache/assets"

say() { printf '[assets %4ds] %s\n' "$SECONDS" "$*" >&2; }

# Minutes of one core to build a part when nothing of it is cached.
minutes_of() {
  case $1 in
    programs | crane) echo 1 ;;
    controlplane) echo 12 ;;
    *) echo 4 ;;
  esac
}

# What decides whether a part has to be built again.
inputs_of() {
  case $1 in
    programs | containerd | controlplane)
      (cd "$here/$1" && find . -type f \( -name '*.go' -o -name go.mod -o -name go.sum \) -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum)
      ;;&
    controlplane) echo "$KUBERNETES_VERSION" ;;
    registry) echo "$REGISTRY" ;;
    kwok) echo "$KWOK" ;;
    helm) echo "$HELM" ;;
    crane) echo "$CRANE" ;;
  esac
  declare -f "build_$1"
}

key_of() { inputs_of "$1" | sha256sum | cut -c1-16; }

build_programs() {
  (cd "$here/programs" && go build -trimpath -ldflags '-s -w' -o "$1/" ./...)
}

build_controlplane() {
  local version=${KUBERNETES_VERSION} base=k8s.io/component-base/version
  local minor=${version#v1.}
  (cd "$here/controlplane" && go build -trimpath -o "$1/kubernetes" -ldflags "-s -w \
    -X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor%%.*}" .)
  local name
  for name in etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet kubectl; do
    # Hard links: the program looks at the name it was called by, and they survive being linked to once more.
    ln "$1/kubernetes" "$1/$name"
  done
  rm "$1/kubernetes"
}

build_containerd() {
  (cd "$here/containerd" && go build -trimpath -ldflags '-s -w' -o "$1/" ./...)
}

build_registry() { GOBIN="$1" go install -trimpath -ldflags '-s -w' "$REGISTRY"; }

build_kwok() { GOBIN="$1" go install -trimpath -ldflags '-s -w' "$KWOK"; }

build_helm() { GOBIN="$1" go install -trimpath -ldflags '-s -w' "$HELM"; }

build_crane() { GOBIN="$1" go install -trimpath -ldflags '-s -w' "$CRANE"; }

require_go() {
  if ! command -v go >/dev/null; then
    echo "Go 1.26 or later is needed to build the test cluster and was not found." >&2
    echo "Install it from https://go.dev/dl/ (unpack to /usr/local and put /usr/local/go/bin on the PATH)." >&2
    exit 1
  fi
  local version
  version=$(go env GOVERSION)
  if ! printf 'go1.26\n%s\n' "$version" | LC_ALL=C sort -V -C; then
    echo "Go 1.26 or later is needed to build the test cluster; this is $version. Newer ones: https://go.dev/dl/" >&2
    exit 1
  fi
}

build() {
  local part=$1 target=$2 started=$SECONDS work
  require_go
  say "building $part (about $((($(minutes_of "$part") + $(nproc) - 1) / $(nproc))) min when nothing of it is cached)"
  work=$(mktemp -d "$cache/parts/.$part.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  CGO_ENABLED=0 GOFLAGS=-buildvcs=false "build_$part" "$work" &
  local builder=$!
  while kill -0 "$builder" 2>/dev/null; do
    # A person waits here; say from time to time that it still goes on.
    for _ in {1..60}; do
      kill -0 "$builder" 2>/dev/null || break
      sleep 0.5
    done
    kill -0 "$builder" 2>/dev/null && say "still building $part, $((SECONDS - started)) s so far"
  done
  wait "$builder"
  chmod 755 "$work"
  mv -T "$work" "$target"
  trap - EXIT
  say "built $part in $((SECONDS - started)) s"
}

forecast=
if [[ "${1:-}" == --forecast ]]; then
  forecast=yes
  shift
fi
wanted=("$@")
((${#wanted[@]})) || wanted=("${PARTS[@]}")
declare -A directory
all=
for part in "${PARTS[@]}" "${FURTHER_PARTS[@]}"; do
  key=$(key_of "$part")
  directory[$part]=$cache/parts/$part-$key
  all+=$key
done
assets=$cache/assets/$(sha256sum <<<"$all" | cut -c1-16)
mkdir -p "$assets"

minutes=0
for part in "${wanted[@]}"; do
  if [[ -z "${directory[$part]:-}" ]]; then
    echo "unknown part '$part'; there are: ${PARTS[*]} ${FURTHER_PARTS[*]}" >&2
    exit 1
  fi
  [[ -d "${directory[$part]}" ]] || minutes=$((minutes + $(minutes_of "$part")))
done
if [[ -n "$forecast" ]]; then
  echo "$minutes"
  exit 0
fi

for part in "${wanted[@]}"; do
  if [[ ! -d "${directory[$part]}" ]]; then
    exec 9>"$cache/lock"
    if ! flock --nonblock 9; then
      say "waiting for another build of $part or of something else to finish"
      flock 9
    fi
    # Another process may have built it while this one waited.
    [[ -d "${directory[$part]}" ]] || build "$part" "${directory[$part]}"
    exec 9>&-
  fi
  for program in "${directory[$part]}"/*; do
    name=$(basename "$program")
    if [[ ! -e "$assets/$name" ]]; then
      # By way of a rename, so that two runs side by side do not trip over each other.
      ln -sf "$program" "$assets/.$name.$$"
      mv -T "$assets/.$name.$$" "$assets/$name"
    fi
  done
done
echo "$assets"
