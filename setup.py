"""Package lists only; everything else is in pyproject.toml.

``kernels/`` lies beside the package in the source tree and is installed inside it. A static list cannot say that and
also find new folders by itself.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["vllm_specext", "vllm_specext.*"]),
        *(f"vllm_specext.{name}" for name in find_packages(include=["kernels", "kernels.*"])),
    ],
    package_dir={"vllm_specext.kernels": "kernels"},
)
