# shellcheck shell=bash
# Sourced by scripts/test, scripts/demo and scripts/dev: sets up a fresh Debian or Ubuntu machine for them.
#
#   set_up run     everything that the stack needs: compiler, BPF tools, .venv with umstack in it, the built C core
#   set_up plain   the same without Java and PySpark
#   set_up test    all of run and the tools of the tests: linters, tshark, sanitizers
#
# All output goes to stderr. Existing parts are not touched, so a second run takes a second.
# PYTHON chooses the interpreter, UMSTACK_NO_APT=1 leaves the system packages alone.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

# Root's search path for programs. The user's PATH may contain programs that others placed there.
ROOT_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
SUDO=$(PATH=$ROOT_PATH command -v sudo || true)

# Runs a command as root, directly or through sudo, from root's search path.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        /usr/bin/env PATH="$ROOT_PATH" "$@"
    elif can_sudo; then
        "$SUDO" /usr/bin/env PATH="$ROOT_PATH" "$@"
    else
        die "this needs root, and sudo cannot be used here: $*" "run it as root, then start again"
    fi
}

# Runs apt-get as root, the only step of set-up that needs root.
apt_get() { as_root DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >&2; }

# True if sudo exists and needs no password or has a terminal to ask for it.
can_sudo() { [ -n "$SUDO" ] && { "$SUDO" -n true 2>/dev/null || [ -t 0 ]; }; }

# Runs one of our commands through sudo with our variables and the machine's settings of package registries, then gives
# the files that it left in the checkout to the user.
through_sudo() {
    local status=0 variables=()
    mapfile -t variables < <(env | grep -E '^(UMSTACK_[A-Z_]*|PIP_[A-Z_]*|[a-z]+_proxy|[A-Z]+_PROXY|SSL_CERT_FILE|TERM|NO_COLOR|COLUMNS)=')
    as_root "${variables[@]}" "$@" || status=$?
    as_root find "$ROOT" -path "$ROOT/.git" -prune -o -user 0 -exec chown -h "$(id -u):$(id -g)" {} +
    return "$status"
}

# Prints the first interpreter of a supported version.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "umstack needs Python 3.11 or newer; $(python3 --version 2>/dev/null || echo 'no python3') is what PATH has" \
        "Debian 12, Ubuntu 23.04 and later: apt-get install python3" \
        "Ubuntu 22.04: apt-get install python3.11 python3.11-venv python3.11-dev" \
        "elsewhere: PYTHON=/path/to/python3.11 $0"
}

# Output is captured rather than piped into `grep -q`, which under pipefail would turn success into SIGPIPE.
package_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
package_exists() { [ -n "$(apt-cache show "$1" 2>/dev/null)" ]; }

# Updates the package lists, once per run.
apt_update() {
    [ -z "${APT_UPDATED:-}" ] || return 0
    APT_UPDATED=1
    say "apt-get update"
    apt_get update ||
        say "apt-get update failed, for the reason above; using the existing package lists"
}

# Installs the named packages that are missing.
apt_install() {
    local package missing=()
    for package in "$@"; do package_installed "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt_update
    say "apt-get install ${missing[*]}"
    apt_get -y install --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install: ${missing[*]}" "the reason is above; UMSTACK_NO_APT=1 goes on without"
}

# Like apt_install, for packages without which only a feature or a tier is missing.
apt_install_if_known() {
    local package
    for package in "$@"; do
        package_installed "$package" && continue
        apt_update
        if package_exists "$package"; then apt_install "$package"; else say "no package $package here: left out"; fi
    done
}

# Prints the packages with this interpreter's headers and venv module, if those are missing.
python_packages() {
    local python=$1 version
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    "$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || echo "$version-dev"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "$version-venv"
}

# Installs the runtime of clang's sanitizers and of libFuzzer: a package named after the version, or part of clang.
install_clang_runtime() {
    [ ! -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ] || return 0
    [[ $(clang --version) =~ version\ ([0-9]+) ]] && apt_install_if_known "libclang-rt-${BASH_REMATCH[1]}-dev"
}

# Installs bcc, which `umstack trace` uses, and kernel headers of any version for its compiler (docs/doctor.md).
install_bcc() {
    apt_install_if_known python3-bpfcc
    [ -e "/lib/modules/$(uname -r)/build" ] || compgen -G "/usr/src/linux-headers-*" >/dev/null ||
        apt_install_if_known "linux-headers-$(dpkg --print-architecture)" linux-headers-generic
}

# Unpacks promtool and prometheus, which check the alert rules, into build/tools: installing the package would start a
# server.
unpack_prometheus() {
    ! command -v promtool >/dev/null && [ ! -x "$ROOT/build/tools/usr/bin/promtool" ] || return 0
    apt_update
    package_exists prometheus || { say "no package prometheus here: alert rules are not checked"; return 0; }
    say "unpacking promtool into build/tools"
    mkdir -p "$ROOT/build/tools"
    (cd "$ROOT/build/tools" && apt-get -qq download prometheus >&2 && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) ||
        say "that failed; the tests that need it are skipped"
}

# Installs Java for Spark 4: version 17 or 21, headless. Only Spark needs it, so set-up continues without it.
install_java() {
    local version
    for version in 17 21; do
        (apt_install_if_known "openjdk-$version-jre-headless") || true
        ! command -v java >/dev/null || return 0
    done
    say "no Java here: everything but Spark works"
}

system_packages() {
    local purpose=$1 python=$2
    [ -z "${UMSTACK_NO_APT:-}" ] || return 0
    if ! command -v apt-get >/dev/null; then
        local tool
        for tool in cc clang ip; do
            command -v "$tool" >/dev/null || say "no apt-get here and no $tool: install it by hand if the build asks"
        done
        return 0
    fi
    # shellcheck disable=SC2046
    apt_install gcc libc6-dev libssl-dev clang llvm libbpf-dev libxdp-dev libelf-dev zlib1g-dev iproute2 \
        $(python_packages "$python")
    # Spark needs Java: `umstack monitor` and `pipeline`, the tables of the demo, `umstack report` with --master,
    # --driver-memory or another table format than Parquet, the benchmark of Spark and the tests of the spark tier.
    [ "$purpose" = plain ] || command -v java >/dev/null || install_java
    if [ "$purpose" = test ]; then
        apt_install ethtool tshark tcpdump
        install_clang_runtime
        install_bcc
        unpack_prometheus
        apt_install_if_known debootstrap debhelper python3-venv
        command -v chromium >/dev/null || apt_install_if_known chromium
    fi
}

# Prints the requirements of a purpose: those of its lock; for `plain` those of `run` without PySpark and its library.
requirements() {
    if [ "$1" = plain ]; then
        sed -E '/^(pyspark|py4j)==/,/[^\\]$/d' "$ROOT/packaging/locks/run.lock"
    else
        cat "$ROOT/packaging/locks/$1.lock"
    fi
}

# Prints a hash of everything that determines the packages in .venv; `test` includes `run`, which includes `plain`.
venv_recipe() {
    { cat "$ROOT/pyproject.toml" "$ROOT/ffi/build_ext.py" && requirements "$1"; } | sha256sum | cut -d' ' -f1
}

# Installs the packages of a purpose; pip rejects every file whose hash is not in the lock.
install_locked() {
    local python=$1 purpose=$2
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
        -r <(requirements "$purpose") >&2 ||
        die "pip could not install the packages of packaging/locks; the reason is above" \
            "a hash that differs: the file is not the one that was locked; scripts/dev lock makes a new lock"
}

virtual_environment() {
    local purpose=$1 python=$2 stamp=$VENV/.umstack-setup recipe
    if [ -e "$VENV" ] && ! "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        say "the Python behind .venv is gone or too old: making a new .venv"
        rm -rf "$VENV"
    fi
    if [ ! -e "$VENV" ]; then
        say "making .venv with $("$python" --version)"
        "$python" -m venv "$VENV" >&2 || die "$python cannot make a virtual environment" "its venv package is missing"
    fi
    recipe=$(venv_recipe "$purpose")
    local known=(-e "test $(venv_recipe test)" -e "$purpose $recipe")
    [ "$purpose" != plain ] || known+=(-e "run $(venv_recipe run)")
    if [ -x "$VENV/bin/umstack" ] && grep -qsx "${known[@]}" "$stamp"; then return; fi
    say "installing the packages of packaging/locks for $purpose and umstack into .venv"
    rm -f "$stamp"
    install_locked "$VENV/bin/python" "$purpose"
    install_checkout
    echo "$purpose $recipe" >"$stamp"
}

# Installs umstack from the checkout. The lock includes the build dependencies, so nothing else is fetched.
install_checkout() {
    (cd "$ROOT" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --no-build-isolation -e . >&2) ||
        die "pip could not install umstack; the reason is above" \
            "for details: .venv/bin/pip install -v --no-index --no-deps --no-build-isolation -e ."
}

build() {
    # After a package was added or renamed, Python finds it outside the checkout only if it is installed again.
    (cd / && "$VENV/bin/python" -c 'import umstack, umstack_xdp' 2>/dev/null) || install_checkout
    "$VENV/bin/python" "$ROOT/ffi/build.py" || die "the build failed; the compiler's output is above"
}

# Makes a class archive for Spark's virtual machines: the tests start a dozen, each in half the time.
shared_classes() {
    command -v java >/dev/null || return 0
    local archive
    archive=$("$VENV/bin/python" -c 'from umstack.spark.spark_session import class_archive; print(class_archive())')
    # Java ignores an archive that is older than itself.
    [ ! -e "$archive" ] || [ "$(stat -c %Y "$archive")" -lt "$(stat -Lc %Z "$(command -v java)")" ] || return 0
    say "sharing the classes of Spark's virtual machines"
    "$VENV/bin/python" -m umstack.report.class_archive >/dev/null || say "that failed; the tests take longer"
}

set_up() {
    local purpose=$1 python
    [ "$(uname -s)" = Linux ] || die "umstack runs on Linux only, this is $(uname -s)"
    python=$(find_python)
    system_packages "$purpose" "$python"
    virtual_environment "$purpose" "$python"
    build
    if [ "$purpose" = test ]; then shared_classes; fi
}
