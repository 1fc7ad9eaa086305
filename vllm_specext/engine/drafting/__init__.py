"""From a verified step to the next drafts: what all drafters share, whatever they read."""
