#!/usr/bin/env bash
# Make .venv and install the project into it, once: a stamp remembers the flavour and the requirements that it was made for.
#
#   scripts/setup.sh            GPU flavour where nvidia-smi lists a GPU, otherwise CPU
#
# Variables: FLAVOUR=cpu|gpu, PYTHON=python3.12, PIP_OPTIONS="options for every pip install", VENV=.venv,
#            TORCH_INDEX=ADDRESS of the index that has the CPU build of torch where the configured ones do not
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
stamp=$venv/.specext-setup
log=$venv/setup.log
extras=train,bench,dev
started=$SECONDS

die() { echo "set-up: $*" >&2; exit 1; }
failed() { is_full; tail -n 25 "$log" >&2; die "pip failed; the whole log is $log"; }
# Said last, and alone, because pip tells a full disk amid much else.
is_full() {
    ! grep -q 'No space left on device' "$log" ||
        die "the disk of $venv or of ${TMPDIR:-/tmp}, which pip unpacks in, is full; the CPU flavour takes 5 GB, the GPU flavour more"
}

choose_flavour() {
    if [[ -n ${FLAVOUR:-} ]]; then
        echo "$FLAVOUR"
    elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
        echo gpu
    else
        echo cpu
    fi
}

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

# The virtual environment's, where there is one; otherwise the first that vLLM supports.
choose_python() {
    local candidate candidates=${PYTHON:-python3 python3.12 python3.11 python3.13}
    if [[ -x $venv/bin/python ]]; then
        supported "$venv/bin/python" || die "$venv has $("$venv/bin/python" --version), but vLLM 0.32 needs Python 3.11 to 3.14;" \
            "remove $venv and run this again"
        echo "$venv/bin/python"
        return
    fi
    for candidate in $candidates; do
        if supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    die "no Python 3.11 to 3.14 among: $candidates (PYTHON=... names another)"
}

# step TEXT COMMAND...: run the command quietly, with a line now and then that says what it is doing.
step() {
    local text=$1 begun=$SECONDS told=$SECONDS pid doing
    shift
    echo "set-up: $text"
    "$@" >>"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - told >= 15)); then
            told=$SECONDS
            doing=$(grep -oE '(Collecting|Processing|Downloading|Building) [^ ]+|(Installing collected|Compiling) packages' "$log" |
                tail -n 1 | sed 's#Processing .*/#Reading #' || true)
            echo "set-up:   $((SECONDS - begun)) s  $doing"
        fi
    done
    wait "$pid"
}

# pip would compile all files one after another, on one core.
export PIP_OPTIONS="--no-compile ${PIP_OPTIONS:-}"
compile() {
    local packages
    echo "Compiling packages"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # Some files are templates and no Python, hence true. Nobody imports other projects' tests, and vLLM asks for
    # anthropic, the largest package of all, without importing it.
    "$venv/bin/python" -m compileall -q -j 0 -x '/(tests|anthropic)/' "$packages" || true
}

# shellcheck disable=SC2086  # PIP_OPTIONS is several words
install() { "$venv/bin/python" -m pip install --progress-bar off $PIP_OPTIONS "$@"; }
cpu_step() { SAY_TO=3 bash scripts/install_cpu.sh "$1" "$venv/bin/python" "${@:2}"; }
exec 3>&2

flavour=$(choose_flavour)
[[ $flavour == cpu || $flavour == gpu ]] || die "FLAVOUR is '$flavour', but it must be cpu or gpu"
wanted="$flavour $(cat pyproject.toml scripts/setup.sh scripts/install_cpu.sh | cksum)"
if [[ -f $stamp && $(cat "$stamp") == "$wanted" ]]; then
    exit 0
fi

python=$(choose_python)
echo "set-up: $flavour flavour in $venv with $("$python" --version), a few minutes the first time; details in $log"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" ||
    die "'$python -m venv' failed: on Debian and Ubuntu the package python3-venv provides it"
: >"$log"

project=(--editable ".[$flavour,$extras]")
if [[ $flavour == cpu ]]; then
    torch=$(bash scripts/install_cpu.sh requirement)
    step "$torch (about 200 MB)" cpu_step torch || { is_full; exit 1; } # it has said why
    step "vllm-specext[$flavour,$extras], editable" cpu_step project "${project[@]}" || failed
    step "removing torchvision, torchaudio and torchcodec" cpu_step cleanup || failed
else
    step "vllm-specext[$flavour,$extras], editable" install "${project[@]}" || failed
fi
step "compiling what was installed" compile
echo "$wanted" >"$stamp"
echo "set-up: done in $((SECONDS - started)) s"
