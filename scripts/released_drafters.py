"""Drafters that others have released: for which target, of which method, and whether we have loaded them.

The names are those of the model hub, as the projects list them that ``docs/methods/drafters.md`` links to. Change
``loaded`` when a drafter has been loaded and its tokens compared with plain decoding, and say where.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Released:
    target: str
    method: str
    drafters: tuple[str, ...]
    loaded: str = "not yet"


def eagle3(target: str, *drafters: str) -> Released:
    return Released(target, "eagle3-tree", drafters)


def eagle(target: str, drafter: str) -> Released:
    """EAGLE-1 and EAGLE-2: most of these files have the bias that only our method reads."""
    return Released(target, "griffin", (drafter,))


def griffin(target: str, name: str) -> Released:
    return Released(target, "griffin", (f"husj576/GRIFFIN-{name}",))


def pard(target: str, drafter: str) -> Released:
    """One drafter serves a family of targets."""
    return Released(target, "pard-tree", (drafter,))


def module(target: str) -> Released:
    """In the target's own file."""
    return Released(target, "mtp-tree", ())


def foreign(target: str, drafter: str) -> tuple[Released, ...]:
    """A language model with a tokenizer of its own."""
    return Released(target, "slem", (drafter,)), Released(target, "tli", (drafter,))


def of_deepspec(target: str, name: str, dflash: Iterable[str] = ()) -> tuple[Released, ...]:
    """DFlash and DSpark by the same authors on the same text."""
    return (
        Released(target, "dflash-tree", (*dflash, f"deepseek-ai/dflash_{name}_block7")),
        Released(target, "dspark-tree", (f"deepseek-ai/dspark_{name}_block7",)),
    )


RELEASED = (
    eagle3(
        "meta-llama/Llama-3.1-8B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge",
    ),
    eagle("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"),
    Released("meta-llama/Llama-3.1-8B-Instruct", "dflash-tree", ("z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",)),
    pard("meta-llama/Llama-3.1-8B-Instruct", "amd/PARD-Llama-3.2-1B"),
    eagle3(
        "meta-llama/Llama-3.3-70B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3",
        "lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge",
    ),
    Released("meta-llama/Llama-3.3-70B-Instruct", "draft-model-tree", ("meta-llama/Llama-3.2-1B-Instruct",)),
    pard("meta-llama/Llama-3.3-70B-Instruct", "amd/PARD-Llama-3.2-1B"),
    griffin("meta-llama/Meta-Llama-3-8B-Instruct", "llama3-instruct-8B"),
    Released("meta-llama/Meta-Llama-3-8B-Instruct", "moa", ("huawei-noah/MOASpec-Llama-3-8B-Instruct",)),
    eagle("meta-llama/Meta-Llama-3-8B-Instruct", "yuhuili/EAGLE-LLaMA3-Instruct-8B"),
    griffin("meta-llama/Meta-Llama-3-70B-Instruct", "llama3-instruct-70B"),
    eagle("meta-llama/Meta-Llama-3-70B-Instruct", "yuhuili/EAGLE-LLaMA3-Instruct-70B"),
    griffin("meta-llama/Llama-2-7b-chat-hf", "llama2-chat-7B"),
    griffin("meta-llama/Llama-2-13b-chat-hf", "llama2-chat-13B"),
    griffin("lmsys/vicuna-7b-v1.5", "Vicuna-7B-v1.5"),
    eagle3("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE3-Vicuna1.3-13B"),
    eagle3("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B"),
    eagle3("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3"),
    eagle3("Qwen/Qwen3-4B", "deepseek-ai/eagle3_qwen3_4b_ttt7", "AngelSlim/Qwen3-4B_eagle3"),
    *of_deepspec("Qwen/Qwen3-4B", "qwen3_4b", ["z-lab/Qwen3-4B-DFlash-b16", "RedHatAI/Qwen3-4B-speculator.dflash2"]),
    eagle3(
        "Qwen/Qwen3-8B",
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "deepseek-ai/eagle3_qwen3_8b_ttt7",
        "AngelSlim/Qwen3-8B_eagle3",
        "Tengyunw/qwen3_8b_eagle3",
    ),
    *of_deepspec(
        "Qwen/Qwen3-8B",
        "qwen3_8b",
        ["z-lab/Qwen3-8B-DFlash-b16", "RedHatAI/Qwen3-8B-speculator.dflash2", "RedHatAI/Qwen3-8B-speculator.dflash"],
    ),
    Released("Qwen/Qwen3-8B", "peagle-tree", ("RedHatAI/Qwen3-8B-speculator.peagle",)),
    pard("Qwen/Qwen3-8B", "amd/PARD-Qwen3-0.6B"),
    eagle3(
        "Qwen/Qwen3-14B",
        "RedHatAI/Qwen3-14B-speculator.eagle3",
        "deepseek-ai/eagle3_qwen3_14b_ttt7",
        "AngelSlim/Qwen3-14B_eagle3",
    ),
    *of_deepspec("Qwen/Qwen3-14B", "qwen3_14b"),
    pard("Qwen/Qwen3-14B", "amd/PARD-Qwen3-0.6B"),
    eagle3("Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "AngelSlim/Qwen3-32B_eagle3"),
    Released("Qwen/Qwen3-32B", "draft-model-tree", ("Qwen/Qwen3-0.6B",)),
    pard("Qwen/Qwen3-32B", "amd/PARD-Qwen3-0.6B"),
    eagle3("Qwen/Qwen3-30B-A3B", "Tengyunw/qwen3_30b_moe_eagle3", "AngelSlim/Qwen3-a3B_eagle3"),
    Released("Qwen/Qwen3-30B-A3B", "dflash-tree", ("RedHatAI/Qwen3-30B-A3B-speculator.dflash",)),
    eagle3(
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3",
        "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex",
    ),
    Released(
        "Qwen/Qwen3-30B-A3B-Instruct-2507", "dflash-tree", ("RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash",)
    ),
    eagle3(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge",
    ),
    Released("Qwen/Qwen3-Coder-30B-A3B-Instruct", "dflash-tree", ("z-lab/Qwen3-Coder-30B-A3B-DFlash",)),
    eagle3(
        "Qwen/Qwen3-235B-A22B",
        "RedHatAI/Qwen3-235B-A22B-speculator.eagle3",
        "nvidia/Qwen3-235B-A22B-Eagle3",
        "lmsys/Qwen3-235B-A22B-EAGLE3",
    ),
    eagle3(
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "RedHatAI/Qwen3-235B-A22B-Instruct-2507-speculator.eagle3",
        "lmsys/SGLang-EAGLE3-Qwen3-235B-A22B-Instruct-2507-SpecForge-Meituan",
    ),
    eagle3(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct",
        "lmsys/SGLang-EAGLE3-Qwen3-Coder-480B-A35B-Instruct-SpecForge-EigenAI",
    ),
    eagle3("Qwen/Qwen3-VL-4B-Instruct", "AngelSlim/Qwen3-VL-4B-Instruct_eagle3"),
    eagle3("Qwen/Qwen2.5-VL-7B-Instruct", "Rayzl/qwen2.5-vl-7b-eagle3-sgl"),
    module("Qwen/Qwen3-Next-80B-A3B-Instruct"),
    Released("Qwen/Qwen3.5-4B", "dflash-tree", ("z-lab/Qwen3.5-4B-DFlash",)),
    module("Qwen/Qwen3.5-4B"),
    Released("Qwen/Qwen3.5-9B", "dflash-tree", ("z-lab/Qwen3.5-9B-DFlash",)),
    module("Qwen/Qwen3.5-9B"),
    Released("Qwen/Qwen3.5-27B", "dflash-tree", ("z-lab/Qwen3.5-27B-DFlash",)),
    module("Qwen/Qwen3.5-27B"),
    Released("Qwen/Qwen3.5-397B-A17B", "dflash-tree", ("z-lab/Qwen3.5-397B-A17B-DFlash",)),
    module("Qwen/Qwen3.5-397B-A17B"),
    Released("Qwen/Qwen3.6-27B", "dflash-tree", ("z-lab/Qwen3.6-27B-DFlash",)),
    Released("Qwen/Qwen3.6-35B-A3B", "dflash-tree", ("z-lab/Qwen3.6-35B-A3B-DFlash",)),
    module("Qwen/Qwen3.6-35B-A3B"),
    griffin("Qwen/Qwen2-7B-Instruct", "qwen2-instruct-7B"),
    eagle("Qwen/Qwen2-7B-Instruct", "yuhuili/EAGLE-Qwen2-7B-Instruct"),
    eagle("Qwen/Qwen2.5-14B-Instruct", "Zjcxy-SmartAI/Eagle-Qwen2.5-14B-Instruct"),
    *foreign("Qwen/Qwen2.5-1.5B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    Released("Qwen/Qwen2.5-7B-Instruct", "draft-model-tree", ("Qwen/Qwen2.5-0.5B-Instruct",)),
    pard("Qwen/Qwen2.5-7B-Instruct", "amd/PARD-Qwen2.5-0.5B"),
    *foreign("Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    eagle3("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.eagle3"),
    Released(
        "google/gemma-4-31B-it",
        "dflash-tree",
        (
            "z-lab/gemma-4-31B-it-DFlash",
            "RedHatAI/gemma-4-31B-it-speculator.dflash2",
            "RedHatAI/gemma-4-31B-it-speculator.dflash",
        ),
    ),
    Released("google/gemma-4-31B-it", "dspark-tree", ("RedHatAI/gemma-4-31B-it-speculator.dspark",)),
    Released("google/gemma-4-31B-it", "mtp-tree", ("google/gemma-4-31B-it-assistant",)),
    Released("google/gemma-4-26B-A4B-it", "dflash-tree", ("z-lab/gemma-4-26B-A4B-it-DFlash",)),
    Released("google/gemma-4-26B-A4B-it", "mtp-tree", ("google/gemma-4-26B-A4B-it-assistant",)),
    Released("google/gemma-4-E4B-it", "mtp-tree", ("google/gemma-4-E4B-it-assistant",)),
    Released("google/gemma-4-E2B-it", "mtp-tree", ("google/gemma-4-E2B-it-assistant",)),
    eagle3("openai/gpt-oss-20b", "RedHatAI/gpt-oss-20b-speculator.eagle3"),
    Released(
        "openai/gpt-oss-20b", "peagle-tree", ("amazon/GPT-OSS-20B-P-EAGLE", "amazon/gpt-oss-20b-p-eagle-long-context")
    ),
    Released("openai/gpt-oss-20b", "dflash-tree", ("z-lab/gpt-oss-20b-DFlash",)),
    eagle3("openai/gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3-v3"),
    Released("openai/gpt-oss-120b", "peagle-tree", ("amazon/gpt-oss-120b-p-eagle",)),
    Released("openai/gpt-oss-120b", "dflash-tree", ("z-lab/gpt-oss-120b-DFlash",)),
    eagle3("moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3-mla", "lightseekorg/kimi-k2.5-eagle3"),
    eagle3("moonshotai/Kimi-K2.6", "lightseekorg/kimi-k2.6-eagle3-mla"),
    eagle3("mistralai/Mistral-Small-24B-Instruct-2501", "cvalgian/EAGLE3-Mistral-Small-24B-Instruct-2501"),
    eagle("mistralai/Mixtral-8x7B-Instruct-v0.1", "yuhuili/EAGLE-mixtral-instruct-8x7B"),
    module("XiaomiMiMo/MiMo-7B-RL"),
    module("zai-org/GLM-4.5"),
    module("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    module("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16"),
    Released("ibm-granite/granite-4.0-h-small", "draft-model-tree", ("ibm-granite/granite-4.0-350m",)),
    module("baidu/ERNIE-4.5-21B-A3B-PT"),
)
"""The rows of a target stand together. Where there is no drafter, the method needs none."""

IN_SHORT = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "meta-llama/Meta-Llama-3-8B-Instruct",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3.5-9B",
    "google/gemma-4-31B-it",
    "openai/gpt-oss-20b",
)
"""Targets that the README shows."""
