"""``vllm-specext bench``: methods against plain decoding in the same run, on engines (``acceptance``, ``throughput``,
``sweep``) and on servers (``latency``, ``serve``).

Speed is a ratio to plain decoding measured in turns with it, told with its spread; acceptance leaves out prompts whose
plain answer is a loop; every row says whether its tokens were those of plain decoding, greedily and with seeds.
"""
