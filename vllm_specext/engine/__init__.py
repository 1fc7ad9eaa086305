"""The only code that touches vLLM's internals: configuration, runner hooks, verification, CPU kernel bodies, list of
replacements."""
