"""Pages of the site, and the hooks that build it."""
