"""Hooks that mkdocs calls while it builds the site."""
