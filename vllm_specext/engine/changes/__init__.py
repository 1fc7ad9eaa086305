"""The one list of what we change in vLLM, how a change is made, and the check of vLLM before any is."""
