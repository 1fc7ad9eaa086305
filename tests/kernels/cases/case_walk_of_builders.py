"""The Triton kernels of the verification walks on the drafts of every builder of trees.

The interpreter takes more than a minute for 10,000 trees, so that fewer are walked unless SPECEXT_WALK_TREES says how
many.
"""

import os

import test_walk_of_builders
from case_tree_walk import walks  # noqa: F401 - a fixture
from test_walk_of_builders import (  # noqa: F401
    test_a_walk_accepts_what_a_plain_loop_accepts_of_the_nodes_that_were_drafted,
    test_padding_below_a_node_that_was_drafted_would_be_accepted,
)

test_walk_of_builders.TREES = int(os.environ.get("SPECEXT_WALK_TREES", "300"))
