"""The choice of the number of drafted tokens, simulated: GPUs and models that are not at hand, from one request to 256.

    python -m benchmarks.simulated_drafts

Steps cost what a roofline says (``machines.py``), drafts are accepted as published figures say (``drafters.py``), and
the scheduler's own choice (``vllm_specext.tree.draft_choice``) decides from noisy durations and numbers of accepted
tokens, as in an engine (``simulation.py``). Nothing here has been measured; what is shown is how near the choice comes
to the best fixed number, and to plain decoding where drafts do not pay.
"""
