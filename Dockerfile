# Two images: `docker build --target gpu .` (vLLM's own image with the plug-in) and `docker build --target cpu .`; docs/docker.md
# says how to run them. Everything after the image's name is an argument of `vllm serve`.

FROM vllm/vllm-openai:v0.32.0 AS gpu
COPY . /opt/vllm-specext
# Without the extra `gpu`: vLLM is there, in the pinned version, and stays as it is.
RUN uv pip install --system --no-cache /opt/vllm-specext \
    && useradd --create-home --uid 10001 specext \
    && install --directory --owner=specext /models
USER 10001
WORKDIR /home/specext
# In the volume, so that the next start finds what was fetched, compiled and measured.
ENV HF_HOME=/models XDG_CACHE_HOME=/models/cache TRITON_CACHE_DIR=/models/cache/triton
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=10s --start-period=15m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["vllm-specext", "serve"]

FROM python:3.11-slim AS cpu
# vLLM's CPU kernels are linked with libnuma, and torch.compile calls a C++ compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*
# The CPU build of torch comes from the package indexes that pip is configured with, else from TORCH_INDEX, which is PyTorch's
# own by default; pip reads the other variable, for an index of yours.
ARG PIP_EXTRA_INDEX_URL
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1
WORKDIR /opt/vllm-specext
# The large download alone, so that a change of the sources does not repeat it.
COPY scripts/install_cpu.sh scripts/
RUN bash scripts/install_cpu.sh torch python
COPY . .
RUN bash scripts/install_cpu.sh project python \
    && bash scripts/install_cpu.sh cleanup python \
    && useradd --create-home --uid 10001 specext \
    && install --directory --owner=specext /models
USER 10001
WORKDIR /home/specext
# In the volume, so that the next start finds what was fetched, compiled and measured.
ENV HF_HOME=/models XDG_CACHE_HOME=/models/cache TRITON_CACHE_DIR=/models/cache/triton
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=10s --start-period=15m \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["vllm-specext", "serve"]
