"""Features that are there only while the training needs them: the target computes them beside it."""
