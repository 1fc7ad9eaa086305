"""Block drafters, which draft all positions in one pass: DFlash (arXiv 2602.06036), with trees of the most likely paths
(DDTree, arXiv 2604.12989), and DSpark, whose Markov head makes the positions know of one another."""
