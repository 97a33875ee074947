# shellcheck shell=bash
# What scripts/run, scripts/test and .ci/run share; sourced, never run.
#
# Sets `root` (the repository) and CARGO_TARGET_DIR, and makes sure that there are a Rust toolchain, a
# C compiler and the headers of OpenSSL. On Debian as root it installs what is missing; elsewhere it says what is.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The target folder stands outside the repository, so that every clone shares what is compiled.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tally/target}
case $CARGO_TARGET_DIR in
/*) ;;
*) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;;
esac
export CARGO_TARGET_DIR

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    say "error: $*"
    exit 1
}

# need_packages WHY PACKAGE...: installs Debian packages, or says what has to be installed.
need_packages() {
    local why=$1
    shift
    if ! command -v apt-get >/dev/null; then
        fail "$why. Install $*, or what your system calls it"
    elif [ "$(id -u)" -ne 0 ]; then
        fail "$why. Install it with: sudo apt-get install $*"
    fi
    say "$why: installing $*"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Whether there is a C compiler with the headers of the C library.
has_c_compiler() {
    printf '#include <stdlib.h>\n' | cc -fsyntax-only -x c - >/dev/null 2>&1
}

# Makes sure that everything a build needs is there.
setup() {
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    command -v cargo >/dev/null ||
        fail "there is no cargo. Install Rust with rustup, see https://rustup.rs, and try again"
    if ! (cd "$root" && cargo --version >/dev/null 2>&1); then
        say "installing the Rust toolchain that rust-toolchain.toml names"
        (cd "$root" && rustup toolchain install) ||
            fail "the Rust toolchain of rust-toolchain.toml is missing and could not be installed"
    fi
    # The allocator and zstd are built from C.
    has_c_compiler || need_packages "there is no C compiler" build-essential
    # librdkafka and the CQL driver speak TLS with the system's OpenSSL.
    pkg-config --exists openssl 2>/dev/null ||
        need_packages "there are no OpenSSL headers" pkg-config libssl-dev
}
