"""Drafting on a device, verifying on a server (MoA, section 4.2 and appendix A.6). Nothing here imports vLLM."""
