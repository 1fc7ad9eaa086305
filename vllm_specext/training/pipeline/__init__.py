"""A whole training as one command runs it: settings, plan, run folder, stages, and what is made of the result."""
