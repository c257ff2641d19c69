"""``python -m hrf_paper.manipulation``: see `hrf_paper.manipulation.command`."""

import sys

from hrf_paper.manipulation.command import main

if __name__ == "__main__":
    sys.exit(main())
