"""The keys of ``--speculative-config`` for our methods.

Everything here is checked before weights are loaded. Every error is one sentence that names the key, the value and what
is allowed. Properties say what follows from the keys: the tree, and the KV slots that drafting writes.
"""
