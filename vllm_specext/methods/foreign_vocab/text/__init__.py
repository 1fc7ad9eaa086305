"""One text in the tokens of the target and in those of the drafter, and the markers around the messages in it."""
