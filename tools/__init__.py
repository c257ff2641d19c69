"""Scripts that keep the repository itself in order."""
