"""What builds the environment and keeps the documents up to date."""
