"""``python -m hrf_paper.speech`` is ``hrf-speech``."""

import sys

from hrf_paper.speech.command import main

if __name__ == "__main__":
    sys.exit(main())
