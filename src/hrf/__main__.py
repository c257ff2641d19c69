"""``python -m hrf``: the command, where it is not on the path."""

from hrf.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
