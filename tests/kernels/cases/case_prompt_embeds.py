from types import SimpleNamespace

import torch
from compare import assert_same, bodies
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_REQS, Step, steps
from vllm.v1.worker.gpu.model_states.prompt_embeds import PromptEmbedsState

KINDS = ["tokens", "embeddings", "both"]


@given(
    steps(),
    st.lists(st.sampled_from(KINDS), min_size=MAX_REQS, max_size=MAX_REQS),
    st.sampled_from([3, 1030]),  # 1030: more than a block of the kernel
    st.sampled_from([torch.float32, torch.float16]),
)
def test_given_embeddings_reach_their_rows(step: Step, kinds: list[str], width: int, dtype: torch.dtype) -> None:
    batch = SimpleNamespace(
        num_reqs=step.num_reqs,
        req_ids=[f"request {place}" for place in range(step.num_reqs)],
        num_scheduled_tokens=step.query_start_loc.diff()[: step.num_reqs].numpy(),
        idx_mapping=step.idx_mapping,
        query_start_loc=step.query_start_loc,
    )
    requests = []
    for request, slot in zip(batch.req_ids, step.idx_mapping.tolist(), strict=True):
        kind, length = kinds[slot], int(step.prompt_len[slot])
        mixed = (step.tokens(length) % 2).tolist()
        embeds = None if kind == "tokens" else step.logits(length, width)
        made = SimpleNamespace(
            req_id=request, prompt_embeds=embeds, prompt_is_token_ids=mixed if kind == "both" else None
        )
        requests.append((slot, made))
    rows = step.logits(step.num_tokens + 3, width).to(dtype)

    def run() -> torch.Tensor:
        state = PromptEmbedsState(MAX_REQS, width, dtype, torch.device("cpu"))
        for slot, request in requests:
            state.add_request(slot, request)
        state.apply_staged_writes()
        inputs_embeds = rows.clone()
        state.apply(batch, step.num_computed_tokens, inputs_embeds)
        return inputs_embeds

    expected = run()
    with bodies():
        assert_same(expected, run())
