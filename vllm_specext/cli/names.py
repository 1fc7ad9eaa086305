"""What the command line is called."""

PROGRAM = "vllm-specext"
