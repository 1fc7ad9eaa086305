"""``python -m vllm_specext`` is the ``vllm-specext`` command."""

from vllm_specext.cli import main

main()
